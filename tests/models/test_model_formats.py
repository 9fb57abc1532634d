"""Every format loads to the very model that was saved."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from audit.errors import ModelError
from audit.models import LoadedModel, load
from audit.models.formats import FORMATS

Make = Callable[..., nn.Module]
PICTURES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def check_same(loaded: LoadedModel, model: nn.Module, pictures: torch.Tensor = PICTURES) -> None:
    """The loaded model is in eval mode and gives bit for bit what the saved one gives."""
    with torch.no_grad():
        assert torch.equal(loaded.module(pictures), model(pictures))


def saved(content: object, folder: Path, **options: Any) -> str:
    torch.save(content, folder / "model.pt", **options)
    return str(folder / "model.pt")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1", "mnasnet0_5", "shufflenet_v2_x0_5", "regnet_y_400mf"])
def test_bare_state_dict(name: str, make: Make, tmp_path: Path) -> None:
    model = make(name, 5)
    spec = saved(model.state_dict(), tmp_path)
    loaded = load(spec)
    check_same(loaded, model)
    assert (loaded.arch, loaded.num_classes, loaded.format, loaded.classes) == (name, 5, "state_dict", None)
    assert loaded.digest == hashlib.sha256(Path(spec).read_bytes()).hexdigest()
    assert loaded.spec == spec
    assert type(loaded.preset).__name__ == "ImageClassification"
    assert not loaded.module.training


def test_old_file_format_and_old_batch_norm(mobilenet: nn.Module, tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in mobilenet.state_dict().items() if "num_batches_tracked" not in name}
    check_same(load(saved(state, tmp_path, _use_new_zipfile_serialization=False)), mobilenet)


def test_inception_without_auxiliary_heads(make: Make, tmp_path: Path) -> None:
    model = make("googlenet", 3, aux_logits=False, init_weights=False)
    loaded = load(saved(model.state_dict(), tmp_path))
    check_same(loaded, model)
    assert any("transform_input" in note for note in loaded.notes)


WRAPPED: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    ("state_dict", lambda state: {"state_dict": state, "epoch": 3}, ""),
    ("model", lambda state: {"model": state, "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}}, ""),
    ("model_state_dict", lambda state: {"model_state_dict": state, "loss": np.float64(0.5)}, ""),
    ("net", lambda state: {"net": state, "acc": 91.2}, ""),
    ("ddp", lambda state: {f"module.{name}": tensor for name, tensor in state.items()}, "'module.' was removed"),
    ("compiled", lambda state: {f"_orig_mod.{name}": tensor for name, tensor in state.items()}, "'_orig_mod.'"),
    ("both", lambda state: {f"module._orig_mod.{name}": tensor for name, tensor in state.items()}, "'_orig_mod.'"),
    (
        "lightning",
        lambda state: {
            "state_dict": {
                **{f"model.{name}": tensor for name, tensor in state.items()},
                "loss_fn.weight": torch.ones(3),
            },
            "hyper_parameters": {"lr": 0.1},
            "pytorch-lightning_version": "2.5",
        },
        "left out: loss_fn.weight",
    ),
    ("ema only", lambda state: {"model_ema": {"n_averaged": torch.tensor(3), **state}}, "EMA"),
    ("ema too", lambda state: {"state_dict": state, "state_dict_ema": {"x": torch.zeros(1)}}, "were not used"),
    ("arguments", lambda state: {"model": state, "args": argparse.Namespace(model="mobilenet_v3_small", lr=1)}, ""),
    ("path", lambda state: {"state_dict": state, "log": Path("somewhere")}, ""),
    ("arch", lambda state: {"state_dict": state, "arch": "mobilenet_v3_small"}, ""),
    ("wrong arch", lambda state: {"state_dict": state, "arch": "MyNet"}, "'MyNet', which could not be used"),
    ("unusual entry", lambda state: {"generator": state, "epoch": 1}, "'generator'"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("wrap", "note"), [case[1:] for case in WRAPPED], ids=[case[0] for case in WRAPPED])
def test_checkpoints(wrap: Callable[[dict[str, Any]], Any], note: str, mobilenet: nn.Module, tmp_path: Path) -> None:
    loaded = load(saved(wrap(mobilenet.state_dict()), tmp_path))
    check_same(loaded, mobilenet)
    assert loaded.arch == "mobilenet_v3_small"
    assert note in " ".join(loaded.notes)


def test_prefixes_keep_module_versions(make: Make, tmp_path: Path) -> None:
    model = make("mnasnet0_5")  # reads old weights differently, so refuses weights of no version
    check_same(load(saved({"state_dict": nn.DataParallel(model).state_dict()}, tmp_path)), model)


def test_class_names_and_facts(mobilenet: nn.Module, tmp_path: Path) -> None:
    content = {"state_dict": mobilenet.state_dict(), "classes": ["a", "b", "c"], "epoch": 4, "pipeline": "x.py"}
    loaded = load(saved(content, tmp_path))
    assert loaded.classes == ["a", "b", "c"]
    assert loaded.extras == {"classes": ["a", "b", "c"], "epoch": 4, "pipeline": "x.py"}
    wrong = load(saved({**content, "classes": ["a", "b"]}, tmp_path))
    assert wrong.classes is None
    assert "2 classes but its model has 3 outputs" in " ".join(wrong.notes)


def test_half_precision_and_nan_are_said(mobilenet: nn.Module, tmp_path: Path) -> None:
    state = {n: t.half() if t.is_floating_point() else t.clone() for n, t in mobilenet.state_dict().items()}
    state["classifier.3.bias"][0] = float("nan")
    loaded = load(saved(state, tmp_path))
    assert all(parameter.dtype is torch.float32 for parameter in loaded.module.parameters())
    assert "float16" in " ".join(loaded.notes)
    assert "NaN or infinity, in classifier.3.bias" in " ".join(loaded.notes)


@pytest.mark.slow
def test_named_architectures(weights: Path, mobilenet: nn.Module, tmp_path: Path) -> None:
    check_same(load(str(weights), arch="mobilenet_v3_small"), mobilenet)
    with pytest.raises(ModelError, match=r"do not fit resnet18: missing: conv1\.weight, bn1\.weight"):
        load(str(weights), arch="resnet18")
    code = tmp_path / "net.py"
    code.write_text(
        "from torchvision.models import mobilenet_v3_small\n"
        "def make(num_classes=9): return mobilenet_v3_small(num_classes=num_classes)\n"
        "def wrong(): return mobilenet_v3_small(num_classes=9)\n"
    )
    loaded = load(str(weights), arch=f"{code}:make")
    check_same(loaded, mobilenet)
    with pytest.raises(ModelError, match=r"of another shape: classifier\.3\.weight"):
        load(str(weights), arch=f"{code}:wrong")


@pytest.mark.slow
def test_timm_architecture(tmp_path: Path, resnet: nn.Module) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("mobilenetv3_small_050", num_classes=4).eval()
    loaded = load(saved(model.state_dict(), tmp_path))
    check_same(loaded, model)
    assert (loaded.arch, loaded.num_classes) == ("mobilenetv3_small_050", 4)
    assert type(loaded.preset).__name__ == "Compose"
    shared = load(saved(resnet.state_dict(), tmp_path), arch="timm/resnet18")
    assert shared.arch == "timm/resnet18"
    assert type(shared.preset).__name__ == "Compose"


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.flatten(1))  # type: ignore[no-any-return]


def test_builder_of_a_pipeline(tmp_path: Path) -> None:
    model = Tiny().eval()
    spec = saved({"model": {f"module.{n}": t for n, t in model.state_dict().items()}, "classes": list("abc")}, tmp_path)
    loaded = load(spec, builder=Tiny)
    check_same(loaded, model, torch.ones(2, 3, 2, 2))
    assert (loaded.arch, loaded.preset, loaded.num_classes, loaded.classes) == (None, None, 3, ["a", "b", "c"])


def test_safetensors(mobilenet: nn.Module, tmp_path: Path) -> None:
    torch_file = pytest.importorskip("safetensors.torch")
    path = tmp_path / "weights.bin"  # the name does not matter
    torch_file.save_file(mobilenet.state_dict(), path, metadata={"classes": json.dumps(["a", "b", "c"])})
    loaded = load(str(path))
    check_same(loaded, mobilenet)
    assert (loaded.format, loaded.classes, loaded.arch) == ("safetensors", ["a", "b", "c"], "mobilenet_v3_small")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ModelError, match="damaged safetensors"):
        load(str(path))


def test_safetensors_of_a_versioned_module(make: Make, tmp_path: Path) -> None:
    torch_file = pytest.importorskip("safetensors.torch")
    model = make("mnasnet0_5")
    torch_file.save_file(model.state_dict(), tmp_path / "m.safetensors")
    check_same(load(str(tmp_path / "m.safetensors")), model)


@pytest.mark.slow
def test_torchscript(mobilenet: nn.Module, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(mobilenet, PICTURES).save(str(tmp_path / "m.pt"))  # type: ignore[no-untyped-call]
    loaded = load(str(tmp_path / "m.pt"), trust=True)
    with torch.no_grad():
        torch.testing.assert_close(loaded.module(PICTURES), mobilenet(PICTURES))
    assert (loaded.format, loaded.arch, loaded.num_classes) == ("torchscript", "mobilenet_v3_small", 3)


@pytest.mark.slow
def test_exported(tmp_path: Path) -> None:
    model, path = Tiny().eval(), tmp_path / "program"
    pictures = torch.ones(2, 3, 2, 2)
    torch.export.save(torch.export.export(model, (pictures,)), path)
    loaded = load(str(path), trust=True)
    check_same(loaded, model, pictures)
    assert loaded.format == "exported"
    assert "exactly 2" in " ".join(loaded.notes)
    dynamic = torch.export.export(model, (pictures,), dynamic_shapes=({0: torch.export.Dim("n")},))
    torch.export.save(dynamic, path)
    loaded = load(str(path), trust=True)
    assert "exactly" not in " ".join(loaded.notes)
    check_same(loaded, model, torch.ones(5, 3, 2, 2))


def test_whole_module_with_trust(mobilenet: nn.Module, tmp_path: Path) -> None:
    loaded = load(saved({"model": mobilenet, "classes": list("abc")}, tmp_path), trust=True)
    check_same(loaded, mobilenet)
    assert (loaded.arch, loaded.classes) == ("mobilenet_v3_small", ["a", "b", "c"])
    assert "whole pickled MobileNetV3" in " ".join(loaded.notes)


def test_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sibling.py").write_text("SIZE = 12\n")
    (tmp_path / "my_net.py").write_text(
        "import torch\nfrom torch import nn\nfrom sibling import SIZE\n\n"
        "def model():\n    torch.manual_seed(1)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE, 3), nn.Dropout())\n"
        "ready = model()\n"
    )
    monkeypatch.chdir(tmp_path)
    specs = ["my_net.py", "my_net.py:model", "my_net:model", "my_net:ready", f"{tmp_path}/my_net.py:model"]
    every = [load(spec) for spec in specs]
    assert len({loaded.digest for loaded in every}) == 1
    assert all(loaded.format == "function" and not loaded.module.training for loaded in every)
    torch.manual_seed(2)
    other = tmp_path / "other.py"
    other.write_text((tmp_path / "my_net.py").read_text().replace("manual_seed(1)", "manual_seed(2)"))
    assert load(f"{other}:model").digest != every[0].digest


@pytest.mark.workers
def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, audit.models; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_weights_saved_on_a_gpu(weights: Path, mobilenet: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "gpu.pt"
    with zipfile.ZipFile(weights) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith("data.pkl"):  # the pickle says where each storage was
                data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
                assert b"cuda:0" in data
            target.writestr(name, data)
    check_same(load(str(path)), mobilenet)


def test_every_format_has_a_test() -> None:
    files = list(Path(__file__).parent.glob("test_*.py"))
    names = [path.stem for path in files] + re.findall(r"def (test_\w+)", "\n".join(map(Path.read_text, files)))
    untested = [format_name for format_name in FORMATS if not any(format_name in name for name in names)]
    assert not untested, f"write a test, or a file of tests, with the name of each of these formats: {untested}"
