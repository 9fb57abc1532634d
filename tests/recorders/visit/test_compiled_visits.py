"""Visits in a row that the compiled loops begin and end leave the same rows and items as those that Python does."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, ToTensor

import audit
from audit.recorders.activity import Activity
from audit.recorders.randomness.visit_randomness import VisitRequest, WatchedRandomness
from audit.recorders.stages.discover import find_pipeline
from audit.recorders.visit.instrument import Instrument
from audit.recorders.visit.make import VisitMaker
from audit.values import native as loops

pytestmark = pytest.mark.skipif(loops.native is None, reason="the extension is not compiled")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "pictures" / "class"
    inside.mkdir(parents=True)
    for number in range(24):
        Image.new("RGB", (5, 4), (number, 9, 0)).save(inside / f"{number:02d}.png")
    return inside.parent


def halve(value: torch.Tensor) -> torch.Tensor:
    return value / 2


class Odd(ImageFolder):
    """Each fourth sample is made in an unusual way."""

    def __getitem__(self, index: int) -> Any:
        if index == 21:
            self.transform = Compose([ToTensor()])
        path, label = self.samples[index]
        picture = self.loader(path)
        value = self.transform(picture) if index != 16 else torch.zeros(2)
        if index == 4:
            value.add_(1)
        if index == 8:
            self.loader(self.samples[0][0])
        if index == 12:
            with contextlib.suppress(TypeError):
                self.transform("no picture")
        if index == 20:
            return value, torch.rand(()) > 2
        return value, label


def collate(items: list[Any]) -> list[Any]:
    return items


def record(kind: type[ImageFolder], folder: Path, store: Path) -> tuple[list[Any], list[Any], list[str]]:
    # Before Python 3.12, code that only some items run is seen only when it runs for the first time.
    before = kind(str(folder), Compose([ToTensor(), halve]))
    assert len([before[index] for index in range(len(before))]) == 24
    torch.manual_seed(5)
    dataset = kind(str(folder), Compose([ToTensor(), halve]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(store, capture="digest") as run:
            items = [item for batch in run.loader(DataLoader(dataset, 6, collate_fn=collate)) for item in batch]
    opened = audit.open(store)
    queries = [
        f"SELECT * EXCLUDE (run_id{more}) FROM {table} ORDER BY ALL"
        for table, more in (("samples", ""), ("stage_outputs", ", microseconds"), ("sample_sources", ""), ("rng", ""))
    ]
    (said,) = opened.sql("SELECT warnings FROM runs").fetchone()  # type: ignore[misc]
    return items, [opened.sql(query).fetchall() for query in queries], said


@pytest.mark.parametrize("kind", [ImageFolder, Odd])
def test_both_ways_leave_the_same(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path, kind: type[ImageFolder]
) -> None:
    items, rows, said = record(kind, folder, tmp_path / "compiled")
    monkeypatch.setattr(Instrument, "plan_visits", lambda _: None)
    plain_items, plain_rows, plain_said = record(kind, folder, tmp_path / "plain")
    assert len(items) == 24
    assert [(str(value), str(label)) for value, label in items] == [(str(v), str(label)) for v, label in plain_items]
    assert rows == plain_rows
    assert said == plain_said


def test_the_compiled_loops_begin_and_end_visits_in_a_row(folder: Path) -> None:
    dataset = ImageFolder(str(folder), Compose([ToTensor(), halve]))
    activity = Activity()
    maker = VisitMaker(dataset, find_pipeline(dataset), WatchedRandomness(dataset), activity=activity)
    seen: list[tuple[int, str]] = []

    def make(index: int) -> Any:
        seen.extend((sample.index, sample.stage) for sample in activity.current_samples())
        return dataset[index]

    maker.make(VisitRequest(0), lambda: make(0), "digest")
    maker.begin_sequence()
    try:
        for index in (1, 2):
            visit = maker.begin(VisitRequest(index), "digest")
            assert maker._begun is visit
            made = maker.finish(visit, lambda index=index: make(index))  # type: ignore[misc]
            assert made.is_plain
            assert visit.opened == [dataset.samples[index][0]]
            assert list(visit.route) == [0, 1, 2]
            assert visit._value is None
            assert not visit._passed
        visit = maker.begin(VisitRequest(3), "digest")
        made = maker.finish(visit, lambda: 1 / 0)
        assert (visit.failed_stage, type(made.error)) == ("load", ZeroDivisionError)
        transform, dataset.transform = dataset.transform, None
        maker.begin(VisitRequest(4), "digest")
        assert maker._begun is None
    finally:
        maker.end_sequence()
    assert transform is not None
    assert dataset.transform is None
    assert seen == [(0, "load"), (1, "load"), (2, "load")]
    assert activity.current_samples() == []
