"""Shared by the tests of checks: recorded runs that cost seconds, made once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from checks_world import Edit, world

# Few cores, small jobs: more threads only make each other wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def planted(tmp_path: Path) -> Callable[..., Path]:
    """A store with one run by hand, changed as asked."""

    def plant(edit: Edit | None = None) -> Path:
        made = world()
        if edit is not None:
            edit(made)
        return made.write(tmp_path / "lineage")

    return plant


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the digits fixture with its model, eight pictures of each class."""
    import shutil

    from audit.api import run

    folder = tmp_path_factory.mktemp("digits")
    for label in range(10):
        target = folder / "test" / str(label)
        target.mkdir(parents=True)
        for file in sorted((ROOT / "fixtures/digits/test" / str(label)).iterdir())[:8]:
            shutil.copy(file, target)
    run(
        folder / "test",
        model=ROOT / "fixtures/digits.pt",
        pipeline=ROOT / "pipelines/digits.py",
        store=folder / "lineage",
        name="digits",
        workers=0,
    )
    return folder / "lineage"
