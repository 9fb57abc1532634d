"""torchvision's detectors and segmentation networks are recognised from their weights, like its classifiers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision import models

from audit.errors import UnknownArchitecture
from audit.models import load
from audit.models.building import Architecture, build_hollow
from audit.models.presets import flatten_preset
from audit.models.task_architectures import task_names

#: One of each family that is quick to build, with the number of classes that the test gives it.
_CASES = {
    "fasterrcnn_resnet50_fpn": 3,
    "maskrcnn_resnet50_fpn": 4,
    "retinanet_resnet50_fpn_v2": 5,
    "fcos_resnet50_fpn": 3,
    "ssdlite320_mobilenet_v3_large": 3,
    "deeplabv3_mobilenet_v3_large": 21,
    "fcn_resnet50": 6,
    "lraspp_mobilenet_v3_large": 3,
}


def _save(tmp_path: Path, name: str, classes: int, **more: object) -> Path:
    # Without drawing tens of millions of random weights.
    state = build_hollow(Architecture("torchvision", name, more), classes).state_dict()
    path = tmp_path / "weights.pt"
    torch.save({key: torch.zeros(value.shape) if value.is_meta else value for key, value in state.items()}, path)
    return path


@pytest.mark.parametrize(("name", "classes"), _CASES.items(), ids=[*_CASES])
def test_a_checkpoint_is_recognised_and_loaded(tmp_path: Path, name: str, classes: int) -> None:
    loaded = load(str(_save(tmp_path, name, classes)))
    assert (loaded.arch, loaded.num_classes) == (name, classes)
    assert loaded.preset is not None
    is_detector = not name.startswith(("deeplabv3", "fcn", "lraspp"))
    if is_detector:
        loaded.module.transform.min_size, loaded.module.transform.max_size = (64,), 64
    with torch.inference_mode():
        output = loaded.module([torch.rand(3, 64, 64)] if is_detector else torch.rand(1, 3, 64, 64))
    if is_detector:
        assert {"boxes", "labels", "scores"} <= set(output[0])
    else:
        assert output["out"].shape == (1, classes, 64, 64)


def test_an_auxiliary_head_is_built_where_the_weights_have_one(tmp_path: Path) -> None:
    loaded = load(str(_save(tmp_path, "fcn_resnet50", 4, aux_loss=True)))
    assert "aux" in loaded.module(torch.rand(1, 3, 32, 32))


def test_two_that_fit_equally_are_listed_and_a_name_decides(tmp_path: Path) -> None:
    path = _save(tmp_path, "fasterrcnn_mobilenet_v3_large_fpn", 3)
    with pytest.raises(UnknownArchitecture, match="fit 2 architectures equally") as raised:
        load(str(path))
    assert "fasterrcnn_mobilenet_v3_large_320_fpn" in str(raised.value)
    assert load(str(path), arch="fasterrcnn_mobilenet_v3_large_fpn").num_classes == 3


def test_weights_of_another_detector_are_said_to_be_of_none(tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    torch.save({"rpn.head.weight": torch.zeros(2, 2), "roi_heads.box.weight": torch.zeros(2)}, path)
    with pytest.raises(UnknownArchitecture, match="none of torchvision's"):
        load(str(path))


@pytest.mark.parametrize("name", ["fasterrcnn_resnet50_fpn", "fcn_resnet50"])
def test_the_stages_of_a_preset_are_the_preset(name: str) -> None:
    preset = models.get_model_weights(name).DEFAULT.transforms()
    picture = Image.effect_noise((90, 60), 80).convert("RGB")
    value = picture
    for _, stage in flatten_preset(preset):
        value = stage(value)
    assert torch.equal(value, preset(picture))


def test_every_family_of_torchvision_is_known() -> None:
    assert set(_CASES) <= set(task_names())
