"""docs/INTEGRATIONS.md is true: its Python runs as it stands, in order, and it names every export form and view."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import audit
from audit.integrations.exporters import EXPORTERS
from audit.store.training_views import VIEWS

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "INTEGRATIONS.md").read_text()


def test_every_form_and_view_is_described() -> None:
    assert all(f"--to {name}" in TEXT or f"|{name}" in TEXT for name in EXPORTERS)
    assert all(f"| `{name}` |" in TEXT for name in VIEWS)


def test_the_editor_task_is_json() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    assert [task["type"] for task in json.loads(block)["tasks"]] == ["shell", "shell"]


@pytest.mark.workers
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for package in ("lightning", "transformers", "accelerate", "mlflow", "tensorboard", "openlineage.client"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_ALLOW_FILE_STORE", "MLFLOW_TRACKING_URI"):  # the examples set them: put them back afterwards
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", None)
    monkeypatch.setattr("mlflow.tracking.fluent._active_experiment_id", None)
    namespace: dict[str, object] = {"__name__": "example"}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(compile(block, "INTEGRATIONS.md", "exec"), namespace)
    with audit.open("lineage") as store:
        assert [(run.name, run.samples) for run in store.runs()] == [
            ("lightning", 192),
            ("transformers", 64),
            ("transformers", 32),
        ]
        assert store.run("lightning").tags["mlflow.run_id"] == namespace["number"]
    with audit.open("logged") as store:
        assert [(run.name, run.graded) for run in store.runs()] == [("ffcv", 12), ("scikit-learn", 64)]
    assert len(list((tmp_path / "exported").iterdir())) == len(list(EXPORTERS))
