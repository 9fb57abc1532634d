"""A picture, array or text that a library's function made of another one before the first stage is not as it was loaded."""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dataset_shapes import COUNT, NamedAttribute, Pictures, picture
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, StackDataset, TensorDataset
from torchvision import transforms
from torchvision.transforms import functional

import audit


class Prepared(Pictures):
    """Opens a file, and does something to it before its transform."""

    def __init__(self, path: Path, read: Callable[[Path], Any], transform: Callable[[Any], Any]) -> None:
        self.path, self.read, self.transform = path, read, transform

    def make(self, index: int) -> Any:
        return self.transform(self.read(self.path))


def rotated(path: Path) -> Any:
    return Image.open(path).convert("L").rotate(15)


def resized(path: Path) -> Any:
    with Image.open(path) as image:
        return image.resize((5, 5))


def turned(path: Path) -> Any:
    return np.rot90(np.load(path))


def opened(path: Path) -> Any:
    return Image.open(path).convert("RGB")


def copied(path: Path) -> Any:
    return Image.open(path).convert("RGB").copy()


def replaced(path: Path) -> Any:
    return re.sub("o", "0", path.read_text())


def lowered(path: Path) -> Any:
    with open(path) as file:
        return file.read().strip().lower()


def read(path: Path) -> Any:
    return json.loads(path.read_text())["text"]


def loaded(path: Path) -> Any:
    return np.load(path)


def write(path: Path) -> None:
    if path.suffix == ".png":
        picture(0).save(path)
    elif path.suffix == ".npy":
        np.save(path, np.arange(12.0, dtype=np.float32).reshape(3, 4))
    else:
        path.write_text(json.dumps({"text": "Some words of a text"}))


def length(text: str) -> list[int]:
    return [len(word) for word in text.split()]


def negative(array: Any) -> Any:
    return 1 - np.ascontiguousarray(array)


to_tensor = transforms.ToTensor()


@pytest.mark.parametrize(
    ("name", "prepare", "transform", "reported"),
    [
        ("a.png", rotated, to_tensor, "Image.rotate"),
        ("a.png", resized, to_tensor, "Image.resize"),
        ("a.npy", turned, negative, "rot90"),
        ("a.txt", replaced, length, "sub"),
        ("a.txt", lowered, length, "str.lower"),
        ("a.png", opened, to_tensor, None),
        ("a.png", copied, to_tensor, None),
        ("a.npy", loaded, negative, None),
        ("a.json", read, length, None),
    ],
)
def test_what_is_done_before_the_first_stage(name: str, prepare: Any, transform: Any, reported: str | None, tmp_path: Path) -> None:  # fmt: skip
    write(tmp_path / name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(tmp_path / "lineage", strict=True) as run:
            dataset = run.dataset(Prepared(tmp_path / name, functools.partial(prepare), transform))
            for index in range(COUNT):
                dataset[index]
    texts = run.run.unrecorded or []
    if reported is None:
        assert texts == []
    else:
        assert len(texts) == 1
        assert "changes before the first stage" in texts[0]
        assert f"{reported} (line" in texts[0]


class Parts(Pictures):
    """Gives more than its stage returned."""

    def __init__(self, finish: str) -> None:
        self.finish = finish

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < COUNT:
            raise IndexError(index)
        if self.finish in ("halved", "converted"):
            pixels = np.array(picture(index + 1).convert("L"))
            mask = torch.as_tensor(pixels // 2 if self.finish == "halved" else pixels)
            return functional.to_tensor(picture(index)), mask
        x = functional.to_tensor(picture(index))
        if self.finish == "mix":
            # The other picture goes through the same stage, and a part of it into the first.
            other = functional.to_tensor(picture(index + 1))
            x[:, :2] = other[:, :2]
            return x, index % 3
        if self.finish == "mask":
            return x, torch.from_numpy(np.array(picture(index + 1).convert("L"))).long()
        if self.finish == "untouched":
            return {"image": x, "mask": picture(index + 1).convert("L"), "corners": torch.tensor([[0, 1]])}
        return [x, nn.functional.avg_pool2d(x, 2)], index % 3


@pytest.mark.parametrize(
    ("finish", "reported"),
    [
        ("mix", "the value changes between call.to_tensor#2 (to_tensor) and the item"),
        ("mask", "a part of the item was changed outside of any stage"),
        ("pyramid", "a part of the item was changed outside of any stage"),
        ("halved", "a part of the item was changed outside of any stage"),
        ("converted", None),
        ("untouched", None),
    ],
)
def test_parts_of_the_item_beside_the_stages(finish: str, reported: str | None, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(tmp_path / "lineage", strict=True) as run:
            make_items = run.dataset(Parts(finish))
            for index in range(COUNT):
                make_items[index]
    texts = run.run.unrecorded or []
    assert texts == [] if reported is None else any(reported in text for text in texts), texts


def test_items_of_datasets_that_are_stacked(tmp_path: Path) -> None:
    """The item holds what a stage returned, two levels down: nothing was changed."""
    stacked = StackDataset(image=NamedAttribute("aug"), depth=TensorDataset(torch.arange(float(COUNT))))
    with audit.record(tmp_path / "lineage", strict=True) as run:
        list(run.loader(DataLoader(stacked, batch_size=4)))
    assert (run.run.unrecorded or []) == []


class Sentences(Pictures):
    """Makes numbers of a row that holds a text."""

    def __getitem__(self, index: int) -> Any:
        return self.encode({"text": f"a sentence with number {index}", "label": index % 2})

    def encode(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"ids": [len(word) for word in row["text"].split()], "label": row["label"]}


def test_numbers_that_are_made_of_a_row_with_a_text_are_a_stage(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        make_items = run.dataset(Sentences())
        for index in range(COUNT):
            make_items[index]
    with audit.open(tmp_path / "lineage") as store:
        assert store.sql("SELECT DISTINCT name FROM stage_outputs WHERE stage > 0").fetchall() == [("encode",)]
