"""What stages return while a stream reads ahead is not recorded for the item that it gives meanwhile."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset
from torchvision import transforms

import audit


def double(value: torch.Tensor) -> torch.Tensor:
    return value * 2


class Stream(IterableDataset[Any]):
    """Gives eight items; `give` is handed those that are finished."""

    def __init__(self, give: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self.transform = double
        self.give = give

    def __iter__(self) -> Iterator[Any]:
        return self.give((self.transform(torch.full((2,), float(n))), n) for n in range(8))


class Views(Stream):
    """Two views of each item."""

    def __init__(self, join: Callable[[list[Any]], Any]) -> None:
        super().__init__(iter)
        self.join = join

    def __iter__(self) -> Iterator[Any]:
        for n in range(8):
            value = torch.full((2,), float(n))
            yield self.join([self.transform(value), self.transform(value + 1)]), n


class Scaled(Stream):
    """Changes the value after the stage."""

    def __iter__(self) -> Iterator[Any]:
        for n in range(8):
            yield self.transform(torch.full((2,), float(n))) / 255, n


def shuffled(size: int, seed: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def give(items: Iterator[Any]) -> Iterator[Any]:
        chance, buffer = random.Random(seed), []
        for item in items:
            buffer.append(item)
            if len(buffer) == size:
                yield buffer.pop(chance.randrange(size))
        yield from buffer

    return give


def batched(items: Iterator[Any]) -> Iterator[Any]:
    """Looks at the item that comes next before it gives a batch, as webdataset does."""
    batch: list[Any] = []
    for item in items:
        if len(batch) == 2:
            yield torch.stack([value for value, _ in batch]), torch.tensor([label for _, label in batch])
            batch = []
        batch.append(item)
    yield torch.stack([value for value, _ in batch]), torch.tensor([label for _, label in batch])


def record(dataset: Any, folder: Path, batch_size: int | None = 2) -> tuple[list[Any], list[str], list[Any]]:
    """Return the rows of stages after `load`, what is unrecorded, and the batches."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", audit.RecordingWarning)
        with audit.record(folder) as run:
            batches = list(run.loader(DataLoader(dataset, batch_size=batch_size)))
    with audit.open(folder) as store:
        query = "SELECT index, name, min FROM stage_outputs WHERE stage > 0 ORDER BY index, stage"
        return store.sql(query).fetchall(), store.run().unrecorded or [], batches


@given(size=st.integers(1, 9), seed=st.integers(0, 99))
def test_an_output_is_recorded_only_for_the_item_that_holds_it(
    tmp_path_factory: pytest.TempPathFactory, size: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("stream")
    rows, unrecorded, batches = record(Stream(shuffled(size, seed)), folder)
    items = [value for values, _ in batches for value in values]
    assert {float(item[0]) for item in items} == {2.0 * n for n in range(8)}
    for index, name, least in rows:
        assert name == "double"
        assert least == float(items[index][0])
    assert bool(unrecorded) == (size > 1)
    if size == 1:
        assert len(rows) == 8
    else:
        assert any("runs stages before it returns the item" in text for text in unrecorded)


def triple(value: torch.Tensor) -> torch.Tensor:
    return value * 3


class Held(Stream):
    """Keeps its transform where it is found by its calls only."""

    def __init__(self, give: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        super().__init__(give)
        self.steps = transforms.Compose([triple, transforms.Lambda(torch.Tensor.sqrt)])

    def __iter__(self) -> Iterator[Any]:
        return self.give((self.steps(torch.full((2,), float(n))), n) for n in range(8))


def test_the_stages_of_a_container_are_recorded_only_for_the_item_that_holds_them(tmp_path: Path) -> None:
    rows, unrecorded, batches = record(Held(shuffled(3, 5)), tmp_path)
    labels = [int(label) for _, labels in batches for label in labels]
    assert rows == [
        row
        for index in (2, 4, 5)
        for row in [
            (index, "triple", 3.0 * labels[index]),
            (index, "Lambda", pytest.approx((3 * labels[index]) ** 0.5)),
        ]
    ]
    assert any("runs stages before it returns the item" in text for text in unrecorded)


def test_a_batch_that_is_gathered_with_the_next_item_at_hand_has_no_outputs(tmp_path: Path) -> None:
    rows, unrecorded, batches = record(Stream(batched), tmp_path, batch_size=None)
    assert [values.tolist() for values, _ in batches] == [[[4.0 * n] * 2, [4.0 * n + 2] * 2] for n in range(4)]
    assert rows == []
    assert any("runs stages before it returns the item" in text for text in unrecorded)


@pytest.mark.parametrize("join", [torch.stack, tuple])
def test_two_views_of_one_item_are_its_outputs(tmp_path: Path, join: Callable[[list[Any]], Any]) -> None:
    rows, _, _ = record(Views(join), tmp_path)
    assert [(index, least) for index, name, least in rows if name == "double"] == [
        (n, 2.0 * n + view) for n in range(8) for view in (0, 2)
    ]


def test_a_change_after_the_last_stage_is_reported_as_such(tmp_path: Path) -> None:
    rows, unrecorded, _ = record(Scaled(iter), tmp_path)
    assert [(index, least) for index, name, least in rows if name == "double"] == [(n, 2.0 * n) for n in range(8)]
    assert any("and the item" in text for text in unrecorded)


class Numbered(Stream):
    """Names a stage with a number, as people do."""

    def __iter__(self) -> Iterator[Any]:
        for n in range(8):
            value = self.transform(torch.full((2,), float(n)))
            with audit.stage("step #1") as stage:
                value = stage.out(value / 255)
            yield value, n


def test_a_number_in_a_name_does_not_mean_that_the_stream_reads_ahead(tmp_path: Path) -> None:
    rows, _, _ = record(Numbered(iter), tmp_path)
    assert [(index, least) for index, name, least in rows if name == "double"] == [(n, 2.0 * n) for n in range(8)]
    assert [name for _, name, _ in rows].count("step #1") == 8
