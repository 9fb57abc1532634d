"""ONNX models: ONNX Runtime gives what the exported module gives, and nothing of the file is executed as Python."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import audit
from audit.errors import ClassMismatch, MissingExtra, ModelError
from audit.models import load

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
REPOSITORY = Path(__file__).resolve().parents[2]
PICTURES = torch.randn(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 10)).eval()


def exported(network: nn.Module, path: Path, *, dynamic: bool = True) -> Path:
    axes = {"x": {0: "n"}} if dynamic else None
    pictures = PICTURES if dynamic else PICTURES[:1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (pictures,), path, dynamo=False, input_names=["x"], dynamic_axes=axes)
    return path


@pytest.mark.parametrize("dynamic", [True, False], ids=["any batch", "one sample at a time"])
def test_the_outputs_are_those_of_the_module(network: nn.Module, tmp_path: Path, dynamic: bool) -> None:
    loaded = load(str(exported(network, tmp_path / "model.onnx", dynamic=dynamic)))
    assert (loaded.format, loaded.num_classes, loaded.classes) == ("onnx", 10, None)
    with torch.no_grad():
        torch.testing.assert_close(loaded.module(PICTURES), network(PICTURES))


def test_a_run_needs_no_trust(network: nn.Module, tmp_path: Path) -> None:
    """The class names in the file's metadata are compared with the folders' as those of a checkpoint are."""
    path = exported(network, tmp_path / "model.onnx")
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {"classes": '["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]'})
    onnx.save(model, path)
    run = audit.run(
        REPOSITORY / "fixtures" / "digits" / "test",
        model=path,
        pipeline=REPOSITORY / "pipelines" / "digits.py",
        store=tmp_path / "lineage",
        limit=6,
        workers=0,
    )
    assert (run.status, run.samples, run.graded) == ("complete", 6, 6)
    assert run.model_digest == load(str(path)).digest
    onnx.helper.set_model_props(model, {"classes": '["9", "1", "2", "3", "4", "5", "6", "7", "8", "0"]'})
    onnx.save(model, path)
    with pytest.raises(ClassMismatch):
        audit.run(
            REPOSITORY / "fixtures" / "digits" / "test",
            model=path,
            pipeline=REPOSITORY / "pipelines" / "digits.py",
            store=tmp_path / "lineage",
            limit=6,
            workers=0,
        )


def test_weights_in_another_file_are_refused(
    network: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest would not cover them; the file in the working directory is not read either."""
    monkeypatch.chdir(tmp_path)
    model = onnx.load(exported(network, tmp_path / "model.onnx"))
    onnx.save_model(model, "apart.onnx", save_as_external_data=True, location="apart.data", size_threshold=0)
    with pytest.raises(ModelError, match=r"cannot be loaded.*external_data=False"):
        load("apart.onnx")


def test_a_damaged_file_and_a_missing_package_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x08\x12\x07pytorch")
    with pytest.raises(ModelError, match="is an ONNX model that cannot be loaded"):
        load(str(path))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"pip install 'audit-lineage\[onnx\]'"):
        load(str(path))
