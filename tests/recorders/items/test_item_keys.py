"""Items that a sampler asks for by tuples, mappings or names: recorded under the sample's number, replayed by the same key."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from observing_material import difference, seed_everything
from torch.utils.data import DataLoader, Dataset

import audit
from audit.recorders.items.item_key import key_states, read_key, read_recorded_key, write_key
from audit.recorders.randomness.generator_states import GeneratorState
from audit.recorders.randomness.watch import KEY


class Sizes(NamedTuple):
    number: int
    size: int


class Sized(Dataset):  # type: ignore[type-arg]
    """Makes a picture of the size that it is asked for, as datasets for training at several scales do."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: Any) -> tuple[torch.Tensor, int]:
        index, size = (key["index"], key["size"]) if isinstance(key, dict) else key
        return torch.full((size,), float(index)) + torch.rand(1), int(index) % 2


class SizedBatches(Sized):
    def __getitems__(self, keys: list[Any]) -> list[Any]:
        noise = torch.rand(1)
        return [(x + noise, y) for x, y in (self[key] for key in keys)]


class Named(Dataset):  # type: ignore[type-arg]
    """Knows its items by name; some names are made of digits."""

    def __getitem__(self, name: str) -> torch.Tensor:
        assert isinstance(name, str)
        return torch.tensor([float(ord(sign)) for sign in f"{name:>4}"])


def tuples() -> list[Any]:
    return [[(0, 3), (1, 3)], [(2, np.int64(5)), (3, 5)]]


def mappings() -> list[Any]:
    return [[{"index": index, "size": size} for index, size in batch] for batch in tuples()]


KEYS = {"tuples": tuples, "mappings": mappings}


def recorded(store: Path, dataset: Any, keys: list[Any], workers: int = 0) -> list[tuple[Any, ...]]:
    """Record a loop, compare it with the plain one, and return what is known of its samples."""
    seed_everything(1)
    plain = list(DataLoader(dataset, batch_sampler=keys, num_workers=workers))
    drawn = random.random(), torch.rand(1)
    seed_everything(1)
    with audit.record(store, strict=True) as run:
        made = list(run.loader(DataLoader(dataset, batch_sampler=keys, num_workers=workers)))
    assert difference([plain, drawn], [made, (random.random(), torch.rand(1))]) is None
    with audit.open(store) as lineage:
        return lineage.sql("SELECT index, visit, source FROM samples ORDER BY ALL").fetchall()


@pytest.mark.parametrize("form", KEYS)
@pytest.mark.parametrize("dataset", [Sized(), SizedBatches()], ids=["items", "batches"])
def test_keys_are_replayed(dataset: Any, form: str, tmp_path: Path) -> None:
    samples = recorded(tmp_path, dataset, KEYS[form]())
    assert [index for index, *_ in samples] == ([0, 1, 2, 3] if form == "tuples" else [-1] * 4)
    with audit.open(tmp_path) as lineage:
        replay = lineage.replay(dataset=type(dataset)())
    assert (replay.checked, replay.identical, replay.different) == (4, 4, [])


def test_keys_in_workers(tmp_path: Path) -> None:
    recorded(tmp_path, Sized(), tuples(), workers=1)
    with audit.open(tmp_path) as lineage:
        assert lineage.replay(dataset=Sized()).identical == 4


def test_a_name_of_digits_is_not_a_number(tmp_path: Path) -> None:
    samples = recorded(tmp_path, Named(), [["7", "007"], ["b"]])
    assert samples == [(-1, 0, "dataset://7"), (-1, 1, "dataset://007"), (-1, 2, "dataset://b")]
    with audit.open(tmp_path) as lineage:
        assert lineage.replay(dataset=Named()).identical == 3


def test_a_key_that_cannot_be_stored(tmp_path: Path) -> None:
    recorded(tmp_path, Sized(), [[Sizes(0, 3), Sizes(1, 3)]])
    with audit.open(tmp_path) as lineage:
        replay = lineage.replay(dataset=Sized())
    assert replay.identical == 0
    assert {one.reason for one in replay.different} == {"not reproducible"}
    assert "was asked for it by Sizes(number=0, size=3), which" in str(replay.different[0].detail)


@pytest.mark.parametrize("key", [(1, 2.5), "a'b\n", {"a": [1, None]}, (True, b"\0"), ()])
def test_written_keys(key: Any) -> None:
    written = write_key(key)
    assert written is not None
    assert read_key(written) == key


@pytest.mark.parametrize("key", [(1, float("nan")), (1, object()), (1, "x" * 20_000), (1, torch.zeros(2))])
def test_keys_that_are_not_written(key: Any) -> None:
    assert write_key(key) is None
    found = read_recorded_key(dict(key_states(key)))
    assert found is not None
    assert not found.is_stored


@pytest.mark.parametrize("text", [b'{"key": "__import__(\'os\')"}', b'{"key": "(("}', b'{"key": "f(1)"}'])
def test_a_key_of_a_store_runs_nothing(text: bytes) -> None:
    found = read_recorded_key({KEY: GeneratorState(text)})
    assert found is not None
    assert not found.is_stored
