"""Outputs that are stored as a function of a stored picture come back exactly through a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

import audit
from audit.values import native as loops


def _draw_on(picture: Image.Image) -> Image.Image:
    """Change a picture in place, after it was recorded."""
    picture.putpixel((0, 0), (1, 2, 3))
    return picture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for number in range(3):
        place = tmp_path / "images" / f"class_{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(place / f"{number}.png")
    return tmp_path / "images"


def _record(folder: Path, store: Path, steps: list[Any]) -> list[dict[str, Any]]:
    dataset = ImageFolder(str(folder), transforms.Compose(steps))
    with audit.record(store, capture="full", strict=True) as run:
        list(run.loader(DataLoader(dataset, batch_size=2)))
    query = "SELECT index, stage, encoding FROM payloads WHERE form = 'full' ORDER BY index, stage"
    return [
        dict(zip(("index", "stage", "encoding"), row, strict=True)) for row in audit.open(store).sql(query).fetchall()
    ]


@pytest.mark.skipif(loops.native is None, reason="the C extension is not built here")
def test_every_output_comes_back(folder: Path, tmp_path: Path) -> None:
    steps = [
        transforms.CenterCrop(32),
        transforms.ToTensor(),
        transforms.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]),
    ]
    rows = _record(folder, tmp_path / "lineage", steps)
    assert [row["encoding"] == "derived" for row in rows] == [False, True, True, True] * 3
    store = audit.open(tmp_path / "lineage")
    for index in range(3):
        trace = store.trace(index=index)
        value: Any = Image.open(ImageFolder(str(folder)).samples[index][0]).convert("RGB")
        assert trace.value(0).tobytes() == value.tobytes()
        for stage, step in enumerate(steps, 1):
            value = step(value)
            back = trace.value(stage)
            assert torch.equal(back, value) if isinstance(value, torch.Tensor) else back.tobytes() == value.tobytes()
        assert np.array_equal(trace.value(3, numpy_only=True), value.numpy())


def test_a_picture_that_was_changed_in_place_is_not_derived_from(folder: Path, tmp_path: Path) -> None:
    _record(folder, tmp_path / "lineage", [_draw_on, transforms.ToTensor()])
    trace = audit.open(tmp_path / "lineage").trace(index=0)
    drawn = trace.value(1)
    assert drawn.getpixel((0, 0)) == (1, 2, 3)
    assert trace.value(0).tobytes() != drawn.tobytes()
    assert torch.equal(trace.value(2), transforms.ToTensor()(drawn))


def _draw_and_convert(picture: Image.Image) -> torch.Tensor:
    """Draw on a picture that was noted already, and return both as a tensor."""
    picture.paste((255, 0, 0), (0, 0, 20, 20))
    return transforms.functional.to_tensor(picture)


def _previews(folder: Path, store: Path, capture: Literal["preview", "full"], steps: list[Any]) -> list[Any]:
    dataset = ImageFolder(str(folder), transforms.Compose(steps))
    with audit.record(store, capture=capture, strict=True) as run:
        list(run.loader(DataLoader(dataset)))
    trace = audit.open(store).trace(index=0)
    return [trace.preview(stage) for stage in range(len(steps) + 1)]


@pytest.mark.skipif(loops.native is None, reason="the C extension is not built here")
@pytest.mark.parametrize("capture", ["preview", "full"])
def test_a_tensor_that_shows_the_picture_has_its_preview(
    capture: Literal["preview", "full"], folder: Path, tmp_path: Path
) -> None:
    normalize = transforms.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])
    darken = transforms.Lambda(lambda picture: picture.point(lambda level: level // 4))
    store = tmp_path / "lineage"
    _, dark, tensor, normal = _previews(folder, store, capture, [darken, transforms.ToTensor(), normalize])
    assert tensor == dark
    assert normal is not None
    assert normal != tensor
    before, after = _previews(folder, tmp_path / "drawn on", capture, [_draw_and_convert])
    assert after is not None
    assert after != before
