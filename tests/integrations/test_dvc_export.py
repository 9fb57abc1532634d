"""DVC: the stage file and the metrics of a run, read and run by DVC itself."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from external_tools import tool_command

import audit
from audit.integrations import export

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a few digits, a model, and a recorded run."""
    for name in os.listdir(REPOSITORY / "fixtures" / "digits" / "test"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for path in sorted((REPOSITORY / "fixtures" / "digits" / "test" / name).iterdir())[:2]:
            shutil.copy(path, tmp_path / "data" / name)
    shutil.copy(REPOSITORY / "fixtures" / "digits.pt", tmp_path)
    shutil.copy(REPOSITORY / "pipelines" / "digits.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    command = "audit run --dataset data --model digits.pt --pipeline digits.py --workers 0"
    audit.run("data", model="digits.pt", pipeline="digits.py", store="lineage", workers=0, command=command)
    return tmp_path


def test_metrics_plots_and_stage(project: Path) -> None:
    done = export("lineage", "latest", "dvc", "metrics")
    assert done.files == ["dvc.yaml", "metrics.json", "plots/confusion.csv", "plots/epochs.csv"]
    metrics = json.loads((project / "metrics" / "metrics.json").read_text())
    with audit.open("lineage") as store:
        run = store.run()
        confusion = store.sql("SELECT label_name, predicted_name FROM lineage ORDER BY index").fetchall()
    assert (metrics["samples"], metrics["wrong"], metrics["accuracy"]) == (20, run.wrong, run.accuracy)
    with (project / "metrics" / "plots" / "confusion.csv").open(newline="") as lines:
        assert list(csv.reader(lines)) == [["actual", "predicted"], *map(list, confusion)]
    stage = yaml.safe_load((project / "metrics" / "dvc.yaml").read_text())["stages"]["audit"]
    assert stage["cmd"] == [run.command, "audit export latest --to dvc -o metrics --store lineage"]
    assert stage["deps"] == ["data", "digits.pt", "digits.py"]
    assert stage["wdir"] == ".."


def test_a_stage_file_that_exists_is_kept(project: Path) -> None:
    (project / "metrics").mkdir()
    (project / "metrics" / "dvc.yaml").write_text("stages: {}")
    assert "dvc.yaml" not in export("lineage", None, "dvc", "metrics").files
    assert (project / "metrics" / "dvc.yaml").read_text() == "stages: {}"


@pytest.mark.workers
@pytest.mark.slow
def test_dvc_runs_the_stage_and_shows_its_metrics(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dvc exp run` records again, and `dvc exp show` reads the numbers."""
    dvc = tool_command("dvc")
    monkeypatch.setenv("PATH", f"{REPOSITORY / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "nobody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "nobody@example.org")
    export("lineage", None, "dvc", "metrics")
    (project / ".gitignore").write_text("lineage\n")

    def call(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    call("git", "init", "-q")
    call(dvc, "init", "-q")
    call("git", "add", "-A")
    call("git", "commit", "-qm", "start")
    call(dvc, "exp", "run", "metrics/dvc.yaml:audit")
    shown: list[dict[str, Any]] = json.loads(call(dvc, "exp", "show", "--json"))
    assert shown[0]["data"]["metrics"]["metrics/metrics.json"]["data"]["samples"] == 20
    assert set(shown[0]["data"]["deps"]) == {"data", "digits.pt", "digits.py"}
    with audit.open("lineage") as store:
        assert len(store.runs()) == 2
