"""Code that only some items run: what it changes is reported, also if no item whose calls are listed runs it."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset

import audit
from audit.recorders.calls.monitor import MONITOR, can_monitor
from audit.recorders.capture_level import CaptureLevel
from audit.recorders.loop.recorded_dataset import record_items
from audit.recorders.randomness.visit_randomness import WatchedRandomness
from audit.recorders.stages.discover import find_pipeline
from audit.recorders.visit.item_recorder import ItemRecorder
from audit.recorders.visit.make import VisitMaker

#: None before Python 3.12.
MONITORING: Any = getattr(sys, "monitoring", None)
#: The one item that takes the branch. It is none whose calls are listed.
RARE = 29
COUNT = 36


class Rows(Dataset):  # type: ignore[type-arg]
    """On Python 3.11 code leaves a trace only when it runs for the first time, so each class is used by one test."""

    def __init__(self) -> None:
        self.rows = torch.arange(COUNT * 12.0).reshape(COUNT, 12)
        self.array = np.arange(COUNT * 12.0).reshape(COUNT, 12)
        self.pictures = [Image.new("RGB", (4, 3), (n, 1, 2)) for n in range(COUNT)]
        self.texts = [f"the text number {n}" for n in range(COUNT)]
        self.tf = nn.Flatten(0)
        self.hits = 0
        self.seen: list[Any] = []

    def __len__(self) -> int:
        return COUNT

    def to_tensor(self, picture: Any) -> Any:
        return torch.from_numpy(np.asarray(picture).copy())


class Operator(Rows):
    def __getitem__(self, index: int) -> Any:
        x = self.rows[index]
        if index == RARE:
            x = x * 2
        return self.tf(x), 0


class NoStage(Rows):
    def __getitem__(self, index: int) -> Any:
        x = self.rows[index]
        if index == RARE:
            x = x * 2
        return x, 0


class Expression(Rows):
    def __getitem__(self, index: int) -> Any:
        x = self.rows[index]
        x = x * 2 if index == RARE else x
        return self.tf(x), 0


class Returned(Rows):
    def __getitem__(self, index: int) -> Any:
        return self.tf(self.read(index)), 0

    def read(self, index: int) -> Any:
        x = self.rows[index]
        if index == RARE:
            return x + 1
        return x


class Turned(Rows):
    def __getitem__(self, index: int) -> Any:
        picture = self.pictures[index].copy()
        if index == RARE:
            picture = picture.rotate(90, expand=True)
        return self.to_tensor(picture), 0


class InPlace(Rows):
    def __getitem__(self, index: int) -> Any:
        x = self.array[index].copy()
        if index == RARE:
            x[0] = 5
        return self.scale(x), 0

    def scale(self, x: Any) -> Any:
        return torch.from_numpy(x)


class InMapping(Rows):
    def __getitem__(self, index: int) -> Any:
        held = {"x": self.rows[index]}
        if index == RARE:
            held["x"] = held["x"] * 2
        return self.tf(held["x"]), 0


class OnObject(Rows):
    def __getitem__(self, index: int) -> Any:
        self.now = self.rows[index]
        if index == RARE:
            self.now = self.now * 2
        return self.tf(self.now), 0


class OtherMethod(Rows):
    def __getitem__(self, index: int) -> Any:
        x = self.special(index) if index == RARE else self.rows[index]
        return self.tf(x), 0

    def special(self, index: int) -> Any:
        return self.rows[index] + 1


class Words(Rows):
    def __getitem__(self, index: int) -> Any:
        text = self.texts[index]
        if index == RARE:
            text = text.upper()
        return text, 0


class ByStage(Rows):
    """A function that is observed is a stage of the one item."""

    def __getitem__(self, index: int) -> Any:
        picture = self.pictures[index].copy()
        if index == RARE:
            picture = ImageOps.mirror(picture)
        return self.to_tensor(picture), 0


class Counted(Rows):
    def __getitem__(self, index: int) -> Any:
        x = self.rows[index]
        if index == RARE:
            self.hits += 1
            mean = x.mean().item() * 2
            self.seen.append(mean + x.shape[0])
        return self.tf(x), 0


class OtherRow(Rows):
    def __getitem__(self, index: int) -> Any:
        x = self.rows[index]
        if index == RARE:
            x = self.rows[index - 1]
        return self.tf(x), 0


class Labelled(Rows):
    def __getitem__(self, index: int) -> Any:
        y = index
        if index == RARE:
            y = y * 2 + 1
        return self.tf(self.rows[index]), y


class Kept(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        index = 3 if index == RARE else index
        if index in self.kept:
            picture = self.kept[index]
        else:
            picture = self.kept[index] = self.pictures[index].copy()
        return self.to_tensor(picture), 0


class Again(Rows):
    """Gives another item instead of one that cannot be made."""

    def __getitem__(self, index: int) -> Any:
        try:
            if index == RARE:
                raise OSError("damaged")
            picture = self.pictures[index].copy()
        except OSError:
            return self[index + 1]
        return self.to_tensor(picture), 0


class InStage(Rows):
    """What a stage does is its own business."""

    def __getitem__(self, index: int) -> Any:
        return self.change(self.rows[index], index), 0

    def change(self, x: Any, index: int) -> Any:
        if index == RARE:
            x = x * 2
        return x + 1


def record(dataset: Any) -> tuple[list[Any], list[str]]:
    """Return the items of a dataset that is recorded, and what was not seen."""
    maker = VisitMaker(dataset, find_pipeline(dataset, observe_calls=True), WatchedRandomness(dataset))
    recorder = ItemRecorder(maker, CaptureLevel("digest"))
    items: list[Any] = []
    texts: list[str] = []
    for first in range(0, COUNT, 4):
        items += record_items(recorder, range(first, first + 4))
        batch = recorder.take_batch(None, indexed=True)
        assert batch.problems == []
        texts += batch.unrecorded
    return items, texts


@pytest.fixture(autouse=True)
def _release() -> Any:
    yield
    MONITOR.release()


def rare(texts: list[str]) -> list[str]:
    return [text for text in texts if "code that only some items run" in text]


@pytest.mark.parametrize(
    ("kind", "what", "before_monitoring"),
    [
        *((Operator, "operators", True), (NoStage, "operators", True), (Expression, "operators", True)),
        *((Returned, "operators", True), (Turned, "rotate", True), (InPlace, "assignment to items", True)),
        *((InMapping, "", True), (OnObject, "operators", False), (OtherMethod, "operators", False)),
        (Words, "upper", True),
    ],
)
def test_a_change_that_one_item_makes_is_reported(kind: Any, what: str, before_monitoring: bool) -> None:
    items, texts = record(kind())
    expected = kind()
    for index, (value, _) in enumerate(items):
        assert value == expected[index][0] if isinstance(value, str) else torch.equal(value, expected[index][0])
    if not can_monitor() and not before_monitoring:
        return
    (text,) = rare(texts)
    assert f"a value {'changes' if can_monitor() else 'may change'} in" in text
    assert all(part in text for part in (what, "test_rare_code.py", f"{kind.__name__}."))


@pytest.mark.parametrize("kind", [ByStage, Counted, OtherRow, Labelled, Kept, Again, InStage])
def test_what_changes_no_value_is_not_reported(kind: Any) -> None:
    assert rare(record(kind())[1]) == []


class Unlucky(Rows):
    def __getitem__(self, index: int) -> Any:
        x = self.rows[index]
        if index == RARE:
            x = x * 2
        return self.tf(x), 0


def test_a_recording_reports_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(tmp_path, strict=True) as run:
            list(run.loader(DataLoader(Unlucky(), 4)))
    assert len(rare(list(run.run.unrecorded or []))) == 1
    if can_monitor():
        assert [MONITORING.get_tool(number) for number in range(6)] == [None] * 6
        MONITORING.use_tool_id(4, "a later one")
        try:
            assert MONITORING.get_local_events(4, Unlucky.__getitem__.__code__) == 0
        finally:
            MONITORING.free_tool_id(4)


class Held(Rows):
    def __getitem__(self, index: int) -> Any:
        x = self.rows[index]
        if index == RARE:
            x = x * 2
        return self.tf(x), 0


@pytest.mark.skipif(not can_monitor(), reason="sys.monitoring came with Python 3.12")
def test_other_tools_keep_what_they_hold_and_that_is_reported() -> None:
    for number in (3, 4):
        MONITORING.use_tool_id(number, f"another {number}")
    try:
        texts = record(Held())[1]
        assert [MONITORING.get_tool(number) for number in (3, 4)] == ["another 3", "another 4"]
    finally:
        for number in (3, 4):
            MONITORING.free_tool_id(number)
    assert any("other tools hold sys.monitoring" in text for text in texts)
