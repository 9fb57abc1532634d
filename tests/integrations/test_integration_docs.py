"""docs/INTEGRATIONS.md is true: its Python runs as it stands, in order, and it names every export form and view."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from places import DIGITS

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
    for package in ("mlflow", "tensorboard", "openlineage.client"):
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
            ("training", 192),
        ]
        assert store.run("training").tags["mlflow.run_id"] == namespace["number"]
    with audit.open("logged") as store:
        assert [(run.name, run.graded) for run in store.runs()] == [("ffcv", 12), ("scikit-learn", 64)]
    assert len(list((tmp_path / "exported").iterdir())) == len(list(EXPORTERS))


HEAD = """
import numpy as np
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from torch import nn
from torchvision.transforms import v2

mode = "keep"
transform = [v2.Grayscale(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]

{head}

def build():
    files = sorted(__import__("pathlib").Path("{train}").glob("*/*.png"))[::5]
    pixels = np.stack([np.asarray(Image.open(file).convert("L"), np.float32).ravel() / 255 for file in files])
    return Head(LogisticRegression(max_iter=50).fit(pixels, [int(file.parent.name) for file in files]))
"""


def test_a_head_of_scikit_learn_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    shown = next(block for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "class Head" in block)
    head = shown[shown.index("class Head") : shown.index("def build")]
    code = tmp_path / "sklearn_head.py"
    code.write_text(HEAD.format(head=head, train=DIGITS.parent / "train"))
    run = audit.run(DIGITS, model=f"{code}:build", pipeline=code, store=tmp_path / "lineage", workers=0, limit=80)
    assert (run.status, run.samples, run.failed) == ("complete", 80, 0)
    # The rows are those of the classifier itself.
    monkeypatch.syspath_prepend(str(tmp_path))
    import sklearn_head  # type: ignore[import-not-found]

    classifier = sklearn_head.build().classifier
    with audit.open(tmp_path / "lineage") as store:
        rows = store.sql("SELECT source, predicted, confidence FROM lineage ORDER BY index").fetchall()
        assert run.output == "probabilities"
    for source, predicted, confidence in rows:
        pixels = np.asarray(Image.open(DIGITS / source).convert("L"), np.float32).ravel() / 255
        expected = classifier.predict_proba(pixels[None])[0]
        assert predicted == expected.argmax()
        assert confidence == pytest.approx(expected.max(), abs=1e-5)
