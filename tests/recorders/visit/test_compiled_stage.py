"""The compiled way of a stage notes what `Visit.run` notes, and does the same to the value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.transforms import Compose, ToTensor

from audit.recorders.activity import Activity
from audit.recorders.randomness.visit_randomness import VisitRequest, WatchedRandomness
from audit.recorders.stages.discover import find_pipeline
from audit.recorders.visit.make import MadeVisit, VisitMaker
from audit.recorders.visit.planned_stage import PlannedStage
from audit.records import LEVELS, Level
from audit.values import native as loops


def add_one(value: Any) -> Any:
    return value + 1


def add_one_in_place(value: Any) -> Any:
    return value.add_(1)


def give_back(value: Any) -> Any:
    return value


def as_double(value: Any) -> Any:
    return value.double()


def to_array(value: Any) -> Any:
    return value.numpy()


def give_nothing(value: Any) -> Any:
    return None


def give_pair(value: Any) -> Any:
    return value, 3


def fail(value: Any) -> Any:
    raise ValueError("no such value")


def turn(picture: Any) -> Any:
    return picture.rotate(90)


class Items(Dataset[Any]):
    def __init__(self, steps: list[Any], *, changes_between: bool) -> None:
        self.first, self.transform = Compose(steps[:1]), Compose(steps[1:])
        self.changes_between = changes_between

    def __getitem__(self, index: int) -> tuple[Any, int]:
        value = self.first(Image.new("RGB", (8, 6), (index, 20, 30)))
        if self.changes_between:
            value.mul_(2)
        return self.transform(value), index

    def __len__(self) -> int:
        return 4


PIPELINES = {
    "plain": [ToTensor(), add_one],
    "unchanged": [ToTensor(), give_back, add_one],
    "in place": [ToTensor(), add_one_in_place, add_one],
    "pictures": [turn, ToTensor()],
    "other types": [ToTensor(), as_double, to_array],
    "nothing": [ToTensor(), give_nothing, give_back],
    "pair": [ToTensor(), give_pair, give_back],
    "failure": [ToTensor(), fail, add_one],
}


def make_visits(steps: list[Any], level: Level, *, changes_between: bool, refuses_none: bool) -> list[MadeVisit]:
    dataset = Items(steps, changes_between=changes_between)
    maker = VisitMaker(
        dataset,
        find_pipeline(dataset),
        WatchedRandomness(dataset),
        require_value=refuses_none,
        activity=Activity(),
    )
    return [maker.make(VisitRequest(index), lambda index=index: dataset[index], level) for index in range(3)]  # type: ignore[misc]


def facts_of(made: MadeVisit) -> tuple[Any, ...]:
    visit = made.visit
    rows = {
        ordinal: (row.facts, row.changed, row.params, row.version, row.shared, row.preview, row.full, row.target)
        for ordinal, row in visit.rows.items()
    }
    assert all((row.microseconds or 0) >= 0 for row in visit.rows.values())
    failed = visit.failed_stage, visit.error, visit.problem, type(made.error)
    return rows, visit.last_digest, list(visit.route), failed, visit.changed_in_place, made.gaps


@pytest.mark.skipif(loops.native is None, reason="the extension is not compiled")
@pytest.mark.parametrize("name", [*PIPELINES])
@pytest.mark.parametrize("level", LEVELS)
def test_both_ways_note_the_same(monkeypatch: pytest.MonkeyPatch, name: str, level: Level) -> None:
    for changes_between in (False, True) if PIPELINES[name][0] is not turn else (False,):
        for refuses_none in (False, True):
            for inference in (False, True):
                options: dict[str, Any] = {"changes_between": changes_between, "refuses_none": refuses_none}
                with torch.inference_mode(inference):
                    compiled = make_visits(PIPELINES[name], level, **options)
                    with monkeypatch.context() as patch:
                        patch.setattr(PlannedStage, "compile", lambda *_: None)
                        plain = make_visits(PIPELINES[name], level, **options)
                assert [facts_of(made) for made in compiled] == [facts_of(made) for made in plain]
                for one, other in zip(compiled, plain, strict=True):
                    assert str(one.item) == str(other.item)


def test_other_processes_see_the_stage_and_then_the_datasets_own_code() -> None:
    seen: list[str] = []
    activity = Activity()

    def look(value: Any) -> Any:
        seen.append(activity.current_samples()[0].stage)
        return value

    class Looking(Items):
        def __getitem__(self, index: int) -> tuple[Any, int]:
            seen.append(activity.current_samples()[0].stage)
            found = super().__getitem__(index)
            seen.append(activity.current_samples()[0].stage)
            return found

    dataset = Looking([ToTensor(), look, look], changes_between=False)
    maker = VisitMaker(dataset, find_pipeline(dataset), WatchedRandomness(dataset), activity=activity)
    for index in range(2):
        maker.make(VisitRequest(index), lambda index=index: dataset[index], "digest")  # type: ignore[misc]
    assert seen == ["load", "look", "look", "dataset"] * 2
    assert activity.current_samples() == []
