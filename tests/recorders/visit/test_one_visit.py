"""`audit run`, a loop of one's own and a replay make a visit by the same rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_material import Questions
from torch.utils.data import DataLoader, Dataset

import audit
from audit.recorders.stages.discover import find_pipeline
from audit.recorders.visit.repeated_call import inside_stage
from audit.recorders.visit.stage_register import StageRegister
from audit.records import Stage


class Tells(Dataset):  # type: ignore[type-arg]
    """Tells of one stage for even samples, of two for odd ones, and changes the item afterwards."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        value = torch.full((3,), float(index))
        if index % 2:
            with audit.stage("clean") as stage:
                value = stage.out(value + 1)
        with audit.stage("scale") as stage:
            value = stage.out(value * 2)
        return value + 0.5, index % 3


def reported(index: int, name: str) -> float:
    clean = index + index % 2
    return {"clean": clean, "scale": clean * 2, "item": clean * 2 + 0.5}[name]


@pytest.mark.parametrize("workers", [0, 2])
def test_names_that_some_visits_and_workers_do_not_know(tmp_path: Path, workers: int) -> None:
    """A worker numbers the stages that it is reported of by itself: the second worker meets `clean` first."""
    store = tmp_path / "lineage"
    with audit.record(store, strict=True) as run:
        list(run.loader(DataLoader(Tells(), batch_sampler=[[0, 2], [1, 3], [4, 5], [7, 6]], num_workers=workers)))
    ask = Questions(store)
    check_told(ask)
    with audit.open(store) as opened:
        assert opened.replay(dataset=Tells(), workers=0).identical == 8


def check_told(ask: Questions) -> None:
    rows = ask("SELECT o.index, s.name, o.name, o.mean FROM stage_outputs o JOIN stages s USING (run_id, stage)")
    assert len(rows) == 8 * 3 + 4
    for index, name, own, mean in rows:
        assert name == own
        if name != "load":
            assert mean == pytest.approx(reported(index, name)), (index, name)
    assert ask("SELECT count(*) = count(DISTINCT stage), count(DISTINCT path) FROM stages") == [(True, 4)]
    # On its way to the model a sample passes the stages in the order of their ordinals.
    assert ask("SELECT last(name ORDER BY stage) FROM stage_outputs GROUP BY index") == [("item",)] * 8


RUN = """
import audit, torch
from torch.utils.data import Dataset

class Tells(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        value = torch.full((3,), float(index))
        if index % 2:
            with audit.stage("clean") as stage:
                value = stage.out(value + 1)
        with audit.stage("scale") as stage:
            value = stage.out(value * 2)
        return value + 0.5, index % 3

def dataset():
    return Tells()
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_notes_what_a_loop_notes(tmp_path: Path, write_pipeline: Callable[..., Path], workers: int) -> None:
    store, file = tmp_path / "lineage", write_pipeline(RUN)
    audit.run(f"{file}:dataset", store=store, workers=workers, batch_size=2)
    check_told(Questions(store))
    with audit.open(store) as opened:
        assert opened.replay(workers=0).identical == 8


def test_a_resumed_run_keeps_the_ordinals(tmp_path: Path) -> None:
    pipeline = find_pipeline(Tells())
    first = StageRegister("run")
    first.add(0, pipeline)
    load, scale, item = pipeline.stages[0], inside_stage("scale"), inside_stage("item")
    assert first.ordinals(0, [(0, load), (1, scale), (2, item)]) is None
    rows = first.take_rows().to_pylist()
    assert first.take_rows() is None
    second = StageRegister("run")
    second.add(0, pipeline)
    second.restore([Stage(**{name: row[name] for name in Stage.__slots__}) for row in rows])
    assert second.ordinals(0, [(0, load), (1, item)]) == {0: 0, 1: 2}
    assert second.take_rows() is None
    # A stage that comes late is followed by what followed it: the largest ordinal is the last on the way to the model.
    assert second.ordinals(0, [(0, load), (1, inside_stage("clean")), (2, scale)]) == {0: 0, 1: 3, 2: 4}
    assert [row["name"] for row in second.take_rows().to_pylist()] == ["clean", "scale"]
