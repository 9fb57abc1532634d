"""A value that is changed in place is another value, though it is the same object: the run says so, and stores what was given."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader, Dataset

import audit


class Copy:
    """A stage that returns another object with the same content."""

    def __call__(self, x: Any) -> Any:
        return x.clone() if isinstance(x, torch.Tensor) else x.copy()


class Mutate:
    """A stage that changes what it is given, and returns it."""

    def __call__(self, x: Any) -> Any:
        x += 1
        return x


class Rows(Dataset[Any]):
    def __init__(self) -> None:
        self.rows = torch.arange(48.0).reshape(4, 12)
        self.array = np.arange(48.0).reshape(4, 12)
        self.pictures = [Image.new("RGB", (8, 8), (40 * n, 20, 10)) for n in range(4)]
        self.step = Copy()
        self.mutate = Mutate()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.make(index), index % 2

    def make(self, index: int) -> Any:
        raise NotImplementedError


class TensorAfter(Rows):
    def make(self, index: int) -> Any:
        x = self.step(self.rows[index])
        x.mul_(2)
        return x


class ArrayAfter(Rows):
    def make(self, index: int) -> Any:
        x = self.step(self.array[index])
        x[2:4] = 0
        return x


class PictureAfter(Rows):
    def make(self, index: int) -> Any:
        x = self.step(self.pictures[index])
        ImageDraw.Draw(x).rectangle((0, 0, 3, 3), fill=(255, 255, 255))
        return x


class LateTensor(Rows):
    def make(self, index: int) -> Any:
        x = self.step(self.rows[index])
        if index == 3:
            x[0] = 77
        return x


class LateArray(Rows):
    def make(self, index: int) -> Any:
        x = self.step(self.array[index])
        if index == 3:
            x *= 3
        return x


class TensorBetween(Rows):
    def make(self, index: int) -> Any:
        x = self.step(self.rows[index])
        x.mul_(2)
        return self.step(x)


class ArrayBetween(Rows):
    def make(self, index: int) -> Any:
        x = self.step(self.array[index])
        np.clip(x, 0, 5, out=x)
        return self.step(x)


class ArrayBefore(Rows):
    def make(self, index: int) -> Any:
        x = self.array[index].copy()
        x[2:4] = 0
        return self.step(x)


class Untouched(Rows):
    def make(self, index: int) -> Any:
        labels = {}
        labels[index] = 1
        return self.step(self.array[index])


class Mutated(Rows):
    def make(self, index: int) -> Any:
        return self.mutate(self.step(self.rows[index]))


def pixels(value: Any) -> Any:
    return np.asarray(value)


def record(folder: Path, dataset: Rows) -> tuple[list[str], list[Any]]:
    """Record a pass; return what was not seen, and the digest of each sample's last stage with the item that it had."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(folder, capture="full", strict=True) as run:
            items = list(run.loader(DataLoader(dataset, batch_size=None, collate_fn=lambda item: item)))
    with audit.open(folder) as store:
        for index, (value, _) in enumerate(items):
            trace = store.trace(index=index)
            assert np.array_equal(pixels(trace.value(trace.stages[-1]["stage"])), pixels(value)), index
        assert store.replay(dataset=dataset).identical == 4
        found = store.check().outcome("stage_coverage").status
    assert (found == "fail") == bool(run.run.unrecorded)
    return list(run.run.unrecorded or []), items


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (TensorAfter, "between call.step (Copy) and the item"),
        (ArrayAfter, "between call.step (Copy) and the item"),
        (PictureAfter, "between call.step (Copy) and the item"),
        (LateTensor, "between call.step (Copy) and the item"),
        (LateArray, "between call.step (Copy) and the item"),
        (TensorBetween, "call.step#2 was given a value that no stage returned, after call.step (Copy)"),
        (ArrayBetween, "call.step#2 was given a value that no stage returned, after call.step (Copy)"),
        (ArrayBefore, "before the first stage"),
    ],
)
def test_a_change_in_place_is_said(kind: type[Rows], said: str, tmp_path: Path) -> None:
    (text,) = record(tmp_path, kind())[0]
    assert said in text


@pytest.mark.parametrize("kind", [Untouched, Mutated])
def test_what_stages_return_is_no_change_of_its_own(kind: type[Rows], tmp_path: Path) -> None:
    assert record(tmp_path, kind())[0] == []


def test_a_stage_that_changes_its_input_has_changed_it(tmp_path: Path) -> None:
    record(tmp_path, Mutated())
    with audit.open(tmp_path) as store:
        rows = store.sql("SELECT DISTINCT stage, changed FROM stage_outputs ORDER BY stage").fetchall()
    assert rows == [(0, True), (1, False), (2, True)]


class Painted(Dataset[Any]):
    """Changes a new picture in its own code, and gives it to a stage."""

    def __init__(self, change: str) -> None:
        self.step = Copy()
        self._change = change

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        picture = Image.new("RGB", (8, 8), (index, 20, 10))
        if self._change == "paste":
            canvas = Image.new("RGB", (8, 8))
            canvas.paste(picture.crop((0, 0, 4, 4)), (0, 0))
            picture = canvas
        elif self._change == "draw":
            ImageDraw.Draw(picture).rectangle((0, 0, 3, 3), fill=(255, 0, 0))
        elif self._change == "thumbnail":
            picture.thumbnail((4, 4))
        elif self._change == "putpixel":
            picture.putpixel((1, 1), (9, 9, 9))
        return np.asarray(self.step(picture)).copy(), index


@pytest.mark.parametrize("change", ["paste", "draw", "thumbnail", "putpixel", "nothing"])
def test_a_picture_that_is_painted_on_before_the_first_stage_is_reported(tmp_path: Path, change: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", audit.RecordingWarning)
        with audit.record(tmp_path) as run:
            list(run.loader(DataLoader(Painted(change))))
    with audit.open(tmp_path) as store:
        found = store.run().unrecorded or []
    assert any("changes before the first stage" in text for text in found) == (change != "nothing")
