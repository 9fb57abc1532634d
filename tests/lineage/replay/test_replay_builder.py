"""A loop that says how its dataset is built is replayed without being given one."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from torch.utils.data import DataLoader, Dataset
from warm_programs import warm_python

import audit
from audit.cli.main import cli
from audit.errors import AuditError, NotFound, UsageError

#: A script as people write it: what it defines is `__main__` while it records, and `training_script` while it is replayed.
SCRIPT = """
import random, sys
import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
import audit

SHIFT = random.Random()

def shifted(value):
    return value * FACTOR + SHIFT.random()

FACTOR = 2

def build():
    return ImageFolder(IMAGES, transforms.Compose([transforms.RandomCrop(8), transforms.ToTensor(), shifted]))

if __name__ == "__main__":
    with audit.record(sys.argv[1], name="loop", capture="digest") as run:
        for _ in run.loader(DataLoader(build(), batch_size=3, shuffle=True, num_workers=1), builder=build):
            pass
"""


class Halves(Dataset):  # type: ignore[type-arg]
    """Draws from the global generator."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(2) + index


class Longer(Halves):
    """Has more samples."""

    def __len__(self) -> int:
        return 6


class Noise(Halves):
    """Draws from another."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.random.rand(2)) + index


def audited(*arguments: object) -> Result:
    """A command, with the script read again: Python imports a file once."""
    sys.modules.pop("training_script", None)
    importlib.invalidate_caches()
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


@pytest.mark.workers
def test_a_script_is_replayed_from_another_directory(
    pictures: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    script, store = tmp_path / "training_script.py", tmp_path / "lineage"
    text = SCRIPT.replace("IMAGES", repr(str(pictures(count=5))))
    script.write_text(text)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    subprocess.run([warm_python(), script.name, str(store)], check=True, timeout=300, cwd=tmp_path)
    monkeypatch.chdir(elsewhere)
    done = audited("replay", "loop", "--all", "--json", "--workers", 0, "--store", store)
    assert (done.exit_code, json.loads(done.stdout)["identical"]) == (0, 5), done.stderr
    # What was not stored is derived by the same way.
    done = audited("trace", "loop", 2, "--export", tmp_path / "out", "--store", store)
    assert done.exit_code == 0, done.stderr
    assert np.load(tmp_path / "out" / "03-shifted.npy").shape == (3, 8, 8)
    reproducible = audited("check", "loop", "--only", "reproducible", "--json", "--store", store)
    assert [check["status"] for check in json.loads(reproducible.stdout)["checks"]] == ["pass"], reproducible.stdout
    script.write_text(text.replace("FACTOR = 2", "FACTOR = 3"))
    found = json.loads(audited("replay", "loop", "--json", "--workers", 0, "--store", store).stdout)
    assert {(item["name"], item["reason"]) for item in found["different"]} == {("shifted", "code changed")}
    assert "training_script.py: its SHA-256 was" in found["different"][0]["detail"]
    script.unlink()
    done = audited("replay", "loop", "--store", store)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "training_script.py" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.workers
def test_each_split_has_its_builder(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage") as run:
        recorded = {
            "train": run.loader(DataLoader(Halves()), split="train", builder=Halves),
            "test": run.dataset(Noise(), split="test", builder=f"{__name__}:Noise"),
        }
        for items in recorded.values():
            for _ in zip(range(4), items, strict=False):
                pass
        run.loader(DataLoader(Halves()), split="train", builder=Halves)
        run.loader(DataLoader(Halves()), split="never used", builder=Halves)
        for _ in zip(range(6), run.loader(DataLoader(Longer()), split="more", builder=Longer), strict=False):
            pass
    with audit.open(tmp_path / "lineage") as store:
        result = store.replay(workers=0)
        assert (result.checked, result.identical) == (14, 14), result.different[:2]
        assert store.replay(indices=[5], workers=0).checked == 1, "only one split has it"
        with pytest.raises(NotFound, match="index 9"):
            store.replay(indices=[5, 9])
        recipe = json.loads(store.sql("SELECT recipe FROM runs").fetchall()[0][0])
        assert [(one["split"], os.path.basename(one["file"])) for one in recipe["builders"]] == [
            (split, "test_replay_builder.py") for split in ("train", "test", "never used", "more")
        ]


@pytest.mark.parametrize(
    ("splits", "said"),
    [
        (("train", "test"), "does not store how the dataset of its split 'test'"),
        ((None, None), "several datasets, and"),
    ],
)
def test_what_the_run_does_not_say_is_not_guessed(tmp_path: Path, splits: tuple[Any, Any], said: str) -> None:
    with audit.record(tmp_path / "lineage") as run:
        for split, builder in zip(splits, (Halves, None), strict=True):
            for _ in run.loader(DataLoader(Halves()), split=split, builder=builder):
                pass
    with audit.open(tmp_path / "lineage") as store, pytest.raises(AuditError, match=said):
        store.replay(workers=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "builder",
    [lambda: Halves(), Halves(), "nowhere.py:build", "no_such_module:build", f"{__name__}:gone", f"{__name__}", "x y"],
)
def test_a_builder_that_cannot_be_found_is_refused_at_once(tmp_path: Path, builder: Any) -> None:
    with audit.record(tmp_path / "lineage") as run:
        with pytest.raises(UsageError, match="builder") as refused:
            run.loader(DataLoader(Halves()), builder=builder)
        assert "FILE.py:function" in str(refused.value.hint)
