"""A value that a library loaded is not called changed, whichever way the library returns it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import safetensors
import torch
from dataset_shapes import COUNT, Pictures, picture
from PIL import Image
from safetensors.torch import save_file
from scipy.io import wavfile  # type: ignore[import-untyped]
from torch.utils.data import DataLoader
from torchvision import io, tv_tensors
from torchvision.transforms import v2

import audit

#: Stands for a library's folder that a dataset knows by name alone.
NAMES = {"pictures": "pictures"}


def halve(value: Any) -> Any:
    return value // 2


def read_with_cv2(folder: Path) -> Any:
    return cv2.imread(str(folder / "a.png"))


def read_with_torchvision(folder: Path) -> Any:
    return io.read_image(str(folder / "a.png"))


def read_with_safetensors(folder: Path) -> Any:
    with safetensors.safe_open(folder / "a.safetensors", "pt") as file:
        return file.get_tensor("x")


def read_with_numpy_by_a_path(folder: Path) -> Any:
    return np.array(Image.open(folder / NAMES["pictures"] / "a.png"))


def read_with_scipy(folder: Path) -> Any:
    _, samples = wavfile.read(folder / "a.wav")
    return samples


def turned(folder: Path) -> Any:
    return io.read_image(str(folder / "a.png")).flip(1)


def scaled(folder: Path) -> Any:
    with safetensors.safe_open(folder / "a.safetensors", "pt") as file:
        return file.get_tensor("x") * 2


def scaled_array(folder: Path) -> Any:
    return np.array(Image.open(folder / NAMES["pictures"] / "a.png")) * 2


class Read(Pictures):
    def __init__(self, folder: Path, read: Callable[[Path], Any]) -> None:
        self.folder, self.read = folder, read

    def make(self, index: int) -> Any:
        return halve(self.read(self.folder))


class Boxes(Pictures):
    """A picture, with numbers from a list beside it."""

    def __init__(self, folder: Path, is_turned: bool) -> None:
        self.folder, self.is_turned = folder, is_turned
        self.transform = v2.Compose([v2.RandomHorizontalFlip(), v2.ToImage()])

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < COUNT:
            raise IndexError(index)
        boxes = tv_tensors.BoundingBoxes([[1, 2, 4, 5]], format="XYXY", canvas_size=(8, 10))  # type: ignore[call-overload]
        image: Image.Image = Image.open(self.folder / "a.png")
        if self.is_turned:
            image = image.rotate(15)
        return self.transform(image, {"boxes": boxes, "labels": torch.tensor([index % 3])})


def write(folder: Path) -> None:
    (folder / "pictures").mkdir(parents=True)
    picture(0).save(folder / "a.png")
    picture(0).save(folder / "pictures" / "a.png")
    wavfile.write(folder / "a.wav", 8000, np.arange(12, dtype=np.int16))
    save_file({"x": torch.arange(12).reshape(3, 4)}, folder / "a.safetensors")


def record(store: Path, dataset: Any) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(store, strict=True) as run:
            list(run.loader(DataLoader(dataset, batch_size=2, collate_fn=list)))
    return run.run.unrecorded or []


@pytest.mark.parametrize(
    ("read", "reported"),
    [
        (read_with_cv2, None),
        (read_with_torchvision, None),
        (read_with_safetensors, None),
        (read_with_numpy_by_a_path, None),
        (read_with_scipy, None),
        (turned, "Tensor.flip"),
        (scaled, "operators"),
        (scaled_array, "operators"),
    ],
)
def test_what_a_library_reads_is_as_it_was_loaded(read: Any, reported: str | None, tmp_path: Path) -> None:
    write(tmp_path / "data")
    texts = record(tmp_path / "lineage", Read(tmp_path / "data", read))
    if reported is None:
        assert texts == []
    else:
        (text,) = texts
        assert "changes before the first stage" in text
        assert f"{reported} (line" in text


@pytest.mark.parametrize("is_turned", [False, True])
def test_labels_and_boxes_beside_a_picture_are_not_changes(is_turned: bool, tmp_path: Path) -> None:
    write(tmp_path / "data")
    texts = record(tmp_path / "lineage", Boxes(tmp_path / "data", is_turned))
    assert [("Image.rotate" in text) for text in texts] == ([True] if is_turned else [])


def test_what_a_stream_of_a_library_decodes_is_as_it_was_loaded(tmp_path: Path) -> None:
    """The only code of the user's own is the stage."""
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for index in range(COUNT):
            writer.write({"__key__": f"{index:04}", "jpg": picture(index)})
    stream = webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False, empty_check=False)
    stream = stream.decode("torchrgb").to_tuple("jpg").map_tuple(halve)
    texts = record(tmp_path / "lineage", stream)
    assert not any("the value changes" in text for text in texts), texts
