"""A flattened preset is the preset, bit for bit, as named stages that travel to workers."""

from __future__ import annotations

import pickle
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torchvision import models, transforms
from torchvision.transforms import v2

from audit.errors import ModelError
from audit.models.building import Architecture, torchvision_names
from audit.models.presets import ConvertRGB, flatten_preset, preset_of

STAGES = ["Resize", "CenterCrop", "ToTensor", "Normalize"]
DISTINCT: dict[str, Any] = {}
for _name in torchvision_names():
    for _weight in models.get_model_weights(_name):
        _preset = _weight.transforms()
        DISTINCT.setdefault(f"{_preset!r}{_preset.antialias}", _preset)


def applied(preset: object, picture: Image.Image) -> Any:
    return reduce(lambda value, stage: stage[1](value), flatten_preset(preset), picture)


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    values = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values).convert(mode)


@pytest.mark.parametrize("preset", DISTINCT.values(), ids=lambda preset: f"{preset.crop_size}-{preset.resize_size}")
def test_every_torchvision_preset(preset: Any) -> None:
    stages = flatten_preset(preset)
    assert [name for name, _ in stages] == STAGES
    picture = noise(83, 61)
    assert torch.equal(applied(preset, picture), preset(picture))


@settings(max_examples=examples(25), deadline=None)
@given(
    st.integers(1, 400),
    st.integers(1, 400),
    st.sampled_from(["resnet18", "vit_b_16", "efficientnet_b0", "inception_v3"]),
)
def test_any_picture_size(width: int, height: int, name: str) -> None:
    preset: Any = preset_of(Architecture("torchvision", name))
    picture = noise(width, height)
    assert torch.equal(applied(preset, picture), preset(picture))


def test_stages_survive_pickling_and_say_what_they_do() -> None:
    preset: Any = preset_of(Architecture("torchvision", "resnet18"))
    stages = pickle.loads(pickle.dumps(flatten_preset(preset)))
    picture = noise(40, 30)
    value: Any = picture
    for _, stage in stages:
        value = stage(value)
    assert torch.equal(value, preset(picture))
    assert repr(stages[0][1]).startswith("Resize(size=[256]")
    assert repr(stages[2][1]) == "ToTensor()"
    assert all(isinstance(stage, nn.Module) for _, stage in stages)


def test_picture_size_of_a_transformer_chooses_the_preset() -> None:
    published: Any = preset_of(Architecture("torchvision", "vit_b_16", {"image_size": 384}))
    assert (published.crop_size, published.resize_size) == ([384], [384])
    made: Any = preset_of(Architecture("torchvision", "vit_b_16", {"image_size": 112}))
    assert (made.crop_size, made.resize_size) == ([112], [128])


def test_timm_preset() -> None:
    pytest.importorskip("timm")
    preset: Any = preset_of(Architecture("timm", "mixnet_s"))
    assert [name for name, _ in flatten_preset(preset)] == STAGES
    picture = noise(83, 61)
    assert torch.equal(applied(preset, picture), preset(picture))
    pickle.dumps(flatten_preset(preset))


def test_other_presets() -> None:
    assert flatten_preset(None) == []
    flip, pad = transforms.RandomHorizontalFlip(), transforms.Pad(2)
    nested = transforms.Compose([flip, v2.Compose([pad]), nn.Sequential(nn.Identity())])
    assert [name for name, _ in flatten_preset(nested)] == ["RandomHorizontalFlip", "Pad", "Identity"]
    with pytest.raises(ModelError):
        flatten_preset(3)


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "RGBA", "LA", "CMYK", "I;16", "I", "F", "YCbCr", "HSV"])
def test_convert_rgb_is_pillows(mode: str) -> None:
    picture = (
        Image.new("I;16", (4, 3), 999) if mode == "I;16" else noise(4, 3, "L" if mode == "LA" else "RGB").convert(mode)
    )
    converted = pickle.loads(pickle.dumps(ConvertRGB()))(picture)
    assert converted.mode == "RGB"
    assert converted.tobytes() == picture.convert("RGB").tobytes()
    assert ConvertRGB()(torch.zeros(3)).shape == (3,)


def test_convert_rgb_does_not_copy_pixels_that_are_rgb(tmp_path: Path) -> None:
    noise(4, 3, "RGB").save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        converted = ConvertRGB()(picture)
        assert converted.im is picture.im
    assert type(converted) is Image.Image
    assert converted.info is not picture.info
    converted.load()[0, 0] = (1, 2, 3)  # as stages do that write into a picture
    assert converted.getpixel((0, 0)) == (1, 2, 3)
