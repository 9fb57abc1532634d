"""Visits in a row that the compiled loops make leave the same rows and items as those that Python does."""

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
from audit.recorders.randomness.generator_states import global_sources
from audit.recorders.randomness.visit_randomness import VisitRequest, WatchedRandomness
from audit.recorders.stages.discover import find_pipeline
from audit.recorders.stages.stand_in import CURRENT_VISIT
from audit.recorders.visit.instrument import Instrument
from audit.recorders.visit.item_recorder import ItemRecorder
from audit.recorders.visit.make import VisitMaker
from audit.recorders.visit.visit import Visit
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


def test_most_items_of_a_batch_are_made_in_one_call(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path
) -> None:
    one_by_one: list[int] = []
    record_index = ItemRecorder.record_index

    def note(recorder: ItemRecorder, index: int) -> Any:
        one_by_one.append(index)
        return record_index(recorder, index)

    monkeypatch.setattr(ItemRecorder, "record_index", note)
    items, (samples, *_), _ = record(ImageFolder, folder, tmp_path / "store")
    assert len(items) == len(samples) == 24
    # The first is made with its calls listed; after 1, 2 and 8 items the dataset is looked at.
    assert one_by_one == [0, 1, 7]


class Interrupted(ImageFolder):
    """Ctrl-C while an item is made."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise KeyboardInterrupt
        return super().__getitem__(index)


def test_an_item_that_is_interrupted_ends_the_loop_and_keeps_those_before_it(folder: Path, tmp_path: Path) -> None:
    dataset = Interrupted(str(folder), Compose([ToTensor(), halve]))
    with pytest.raises(KeyboardInterrupt), audit.record(tmp_path / "store", capture="digest") as run:
        for _ in run.loader(DataLoader(dataset, 3)):
            pass
    found = audit.open(tmp_path / "store").sql("SELECT index FROM samples ORDER BY index").fetchall()
    assert [index for (index,) in found] == [0, 1, 2]
    assert not hasattr(CURRENT_VISIT, "visit") or CURRENT_VISIT.visit is None


class Watched(ImageFolder):
    """Notes what other processes can read while an item is made; item 3 cannot be made."""

    activity: Activity
    seen: list[tuple[int, str]]

    def __getitem__(self, index: int) -> Any:
        self.seen += [(sample.index, sample.stage) for sample in self.activity.current_samples()]
        if index == 3:
            raise ZeroDivisionError
        return super().__getitem__(index)


def test_the_compiled_loops_make_visits_in_a_row(folder: Path) -> None:
    dataset = Watched(str(folder), Compose([ToTensor(), halve]))
    dataset.activity, dataset.seen = Activity(), []
    maker = VisitMaker(dataset, find_pipeline(dataset), WatchedRandomness(dataset), activity=dataset.activity)
    made_otherwise: list[Visit] = []
    finish = maker.finish

    def note(visit: Visit, *args: Any, **kwargs: Any) -> Any:
        made_otherwise.append(visit)
        return finish(visit, *args, **kwargs)

    maker.finish = note  # type: ignore[method-assign]
    maker.make(VisitRequest(0), lambda: dataset[0], "digest")
    made_otherwise.clear()
    maker.begin_sequence()
    try:
        for index in (1, 2):
            made = maker.make_item(VisitRequest(index), "digest")
            assert made.is_plain
            assert made.item[0] is made.value
            assert made.visit.opened == [dataset.samples[index][0]]
            assert list(made.visit.route) == [0, 1, 2]
            assert made.visit._value is None
            assert not made.visit._passed
        assert not made_otherwise
        failed = maker.make_item(VisitRequest(3), "digest")
        assert (failed.visit.failed_stage, type(failed.error)) == ("load", ZeroDivisionError)
        assert made_otherwise == [failed.visit]
        transform, dataset.transform = dataset.transform, None
        changed = maker.make_item(VisitRequest(4), "digest")
        assert list(changed.visit.rows) == [0]
        assert maker._plan is None
    finally:
        maker.end_sequence()
    assert transform is not None
    assert dataset.transform is None
    assert dataset.seen == [(0, "load"), (1, "load"), (2, "load"), (3, "load"), (4, "load")]
    assert dataset.activity.current_samples() == []


class Drawing(ImageFolder):
    """Every third item draws a random number."""

    def __getitem__(self, index: int) -> Any:
        if index % 3 == 0:
            torch.rand(1)
        return super().__getitem__(index)


def test_states_before_a_draw_are_those_after_the_last_one(folder: Path) -> None:
    dataset = Drawing(str(folder), Compose([ToTensor(), halve]))
    maker = VisitMaker(dataset, find_pipeline(dataset), WatchedRandomness(dataset))
    maker.make(VisitRequest(0), lambda: dataset[0], "digest")
    maker.begin_sequence()
    try:
        for index in range(1, 12):
            before = torch.get_rng_state()
            states = dict(maker.make_item(VisitRequest(index), "digest").states)
            assert set(states) == ({"torch"} if index % 3 == 0 else set())
            after = torch.get_rng_state()
            if states:
                assert not torch.equal(before, after)
                assert torch.equal(restored_state(states), before)
    finally:
        maker.end_sequence()


def restored_state(states: dict[str, Any]) -> torch.Tensor:
    """Return the state of torch's generator that a replay would restore; the generator stays as it is."""
    now = torch.get_rng_state()
    (source,) = [source for source in global_sources() if source.name == "torch"]
    source.put(states["torch"])
    restored = torch.get_rng_state()
    torch.set_rng_state(now)
    return restored


def test_states_are_right_after_a_visit_that_is_made_otherwise(folder: Path) -> None:
    """As an item whose calls are listed once more, or that is asked for by a name."""
    dataset = Drawing(str(folder), Compose([ToTensor(), halve]))
    maker = VisitMaker(dataset, find_pipeline(dataset), WatchedRandomness(dataset))
    maker.begin_sequence()
    try:
        for index in (1, 2):
            assert not maker.make_item(VisitRequest(index), "digest").states
        maker.make(VisitRequest(3), lambda: dataset[3], "digest")
        before = torch.get_rng_state()
        states = dict(maker.make_item(VisitRequest(6), "digest").states)
        assert torch.equal(restored_state(states), before)
    finally:
        maker.end_sequence()
