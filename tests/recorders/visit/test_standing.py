"""Stand-ins stay in their slots while a batch is fetched, and nothing of them is left, whatever the user's code does."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import Compose

import audit
from audit.recorders.stages.stand_in import StageStandIn


def double(value: torch.Tensor) -> torch.Tensor:
    return value * 2


def add_one(value: torch.Tensor) -> torch.Tensor:
    return value + 1


class Changing(Dataset[Any]):
    """Does something to its own transforms while it makes an item."""

    def __init__(self, change: Callable[[Changing, int], None] = lambda *_: None) -> None:
        self.steps = [double, add_one]
        self.transform = Compose(self.steps)
        self.change = change

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        value = self.transform(torch.full((3,), float(index)))
        self.change(self, index)
        return value, index


def _replace(dataset: Changing, index: int) -> None:
    if index == 2:
        dataset.transform = Compose([add_one])


def _swap(dataset: Changing, index: int) -> None:
    if index == 2:
        steps = dataset.transform.transforms
        steps[0], steps[1] = steps[1], steps[0]


def _append(dataset: Changing, index: int) -> None:
    if index == 2:
        dataset.transform.transforms.append(double)


def _nothing(dataset: Changing, index: int) -> None:
    return


@pytest.mark.parametrize("change", [_nothing, _replace, _swap, _append])
def test_what_the_users_code_does_to_its_transforms_stays(tmp_path: Path, change: Any) -> None:
    plain = Changing(change)
    expected = [value for batch in DataLoader(plain, batch_size=4) for value in batch[0]]
    dataset = Changing(change)
    with audit.record(tmp_path / "lineage") as run:
        found = [value for batch in run.loader(DataLoader(dataset, batch_size=4)) for value in batch[0]]
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert dataset.transform.transforms == plain.transform.transforms
    assert not any(type(step) is StageStandIn for step in dataset.transform.transforms)
    assert type(vars(dataset)["transform"]) is Compose


def test_items_of_a_changed_pipeline_are_not_recorded_as_those_of_the_old_one(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage") as run:
        list(run.loader(DataLoader(Changing(_replace), batch_size=4)))
    rows = (
        audit.open(tmp_path / "lineage")
        .sql("SELECT index, count(*) FROM stage_outputs GROUP BY 1 ORDER BY 1")
        .fetchall()
    )
    assert rows == [(0, 3), (1, 3), (2, 3), *((index, 1) for index in range(3, 8))]
    assert any(
        "were changed after it was wrapped" in text for text in audit.open(tmp_path / "lineage").runs()[0].warnings
    )


def test_no_stand_in_is_left_between_batches_or_after_an_error(tmp_path: Path) -> None:
    def fail(dataset: Changing, index: int) -> None:
        if index == 5:
            raise ValueError("broken")

    dataset = Changing(fail)
    with audit.record(tmp_path / "lineage") as run:
        batches = iter(run.loader(DataLoader(dataset, batch_size=4)))
        next(batches)
        assert dataset.transform.transforms == [double, add_one]
        with pytest.raises(ValueError, match="broken"):
            next(batches)
        assert dataset.transform.transforms == [double, add_one]


def test_states_drawn_in_a_batch_are_those_before_each_item(tmp_path: Path) -> None:
    class Drawing(Dataset[Any]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return (torch.rand(4) if index % 2 else torch.full((4,), float(index))), index

    torch.manual_seed(3)
    with audit.record(tmp_path / "lineage") as run:
        batches = [batch[0] for batch in run.loader(DataLoader(Drawing(), batch_size=3))]
    store = audit.open(tmp_path / "lineage")
    drawn = store.sql("SELECT DISTINCT index FROM rng WHERE generator = 'torch' ORDER BY 1").fetchall()
    assert drawn == [(1,), (3,), (5,)]
    torch.manual_seed(3)
    plain = [batch[0] for batch in DataLoader(Drawing(), batch_size=3)]
    assert all(torch.equal(one, other) for one, other in zip(plain, batches, strict=True))


class _OwnGenerator:
    """Draws from a generator of its own, and replaces it."""

    def __init__(self) -> None:
        self.generator = random.Random(5)

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        self.generator = random.Random(self.generator.random())
        return value + self.generator.random()


def test_generators_behind_stand_ins_are_found(tmp_path: Path) -> None:
    dataset = Changing()
    dataset.transform.transforms[0] = _OwnGenerator()
    with audit.record(tmp_path / "lineage") as run:
        list(run.loader(DataLoader(dataset, batch_size=4)))
    drawn = audit.open(tmp_path / "lineage").sql("SELECT index, count(*) FROM rng GROUP BY 1 ORDER BY 1").fetchall()
    assert drawn == [(index, 1) for index in range(8)]
