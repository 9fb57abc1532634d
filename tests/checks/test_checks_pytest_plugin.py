"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.workers

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "audit.integrations.pytest_plugin"


def pytest_in(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder, with the plugin named once however it is installed."""
    from importlib.metadata import entry_points

    named = any(point.value == PLUGIN for point in entry_points(group="pytest11"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *([] if named else ["-p", PLUGIN]),
        *options,
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def folder(planted: Callable[..., Path], tmp_path: Path) -> Path:
    """A test file as docs/howto/ci.md has it, and a run with one fault."""
    planted(lambda w: w.output(9, 2).update(nonfinite=12))
    text = (ROOT / "docs/howto/ci.md").read_text(encoding="utf-8")
    example = next(code for code in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if "audit_run" in code)
    (tmp_path / "test_example.py").write_text(
        example + "\n\ndef test_other(audit_run):\n    audit_run.assert_passes('blank', 'coverage')\n"
        "\n\ndef test_skipped(audit_run):\n    audit_run.assert_passes('hooks')\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\naudit_store = lineage\n")
    return tmp_path


def test_the_fixture_judges_the_run(folder: Path) -> None:
    done = pytest_in(folder)
    assert "2 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    # The finding is reported where the assertion failed, and nothing of our own frames.
    assert "009.png (index 9): 12 values are NaN" in done.stdout
    assert "pytest_plugin.py" not in done.stdout
    assert "no layers were requested" in done.stdout


def test_options_and_a_run_that_is_not_there(folder: Path) -> None:
    done = pytest_in(folder, "--audit-run", "nonsense")
    assert "4 errors" in done.stdout
    assert "There is no run 'nonsense'" in done.stdout


def test_it_loads_nothing_by_itself(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n\ndef test_nothing():\n    assert not {'torch', 'duckdb', 'pyarrow'} & set(sys.modules)\n"
    )
    done = pytest_in(tmp_path)
    assert "1 passed" in done.stdout, done.stdout
