"""`audit.stage` as the first step of a dataset: `load` is what it was given, or is not known."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import audit

TEXTS = ["one two three", "four five six"]


class Words(Dataset):  # type: ignore[type-arg]
    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return len(TEXTS)

    def __getitem__(self, index: int) -> Any:
        text = TEXTS[index]
        if self.how == "function":
            return count(letters(index)), index
        with audit.stage("letters") if self.how == "block" else audit.stage("letters", text) as s:
            found = s.out(torch.tensor([ord(letter) for letter in text]))
        with audit.stage("count") as s:
            return s.out(found.bincount(minlength=128)), index


@audit.stage
def letters(index: int) -> torch.Tensor:
    return torch.tensor([ord(letter) for letter in TEXTS[index]])


@audit.stage
def count(found: torch.Tensor) -> torch.Tensor:
    return found.bincount(minlength=128)


def record(folder: Path, how: str) -> Any:
    with warnings.catch_warnings(), audit.record(folder, strict=True, capture="full") as run:
        warnings.simplefilter("ignore")
        list(run.loader(DataLoader(Words(how))))
    return run.run


def outputs(folder: Path) -> list[tuple[Any, ...]]:
    query = (
        "SELECT name, kind, mode, digest IS NULL, changed, payload FROM stage_outputs WHERE index = 0 ORDER BY stage"
    )
    with audit.open(folder) as store:
        return list(store.sql(query).fetchall())


def test_a_first_block_says_nothing_of_what_was_loaded(tmp_path: Path) -> None:
    run = record(tmp_path, "block")
    assert outputs(tmp_path)[0] == ("load", "other", "not seen", True, None, "none")
    assert [row[0] for row in outputs(tmp_path)] == ["load", "letters", "count"]
    assert outputs(tmp_path)[1][4] is None, "whether the block changed its input is not known"
    (text,) = run.unrecorded
    assert 'the input of the stage letters was not seen; name it: audit.stage("letters", given)' in text
    with audit.open(tmp_path) as store:
        replayed = store.replay(dataset=Words("block"), workers=0)
        assert (replayed.identical, replayed.checked) == (2, 2)
        assert store.check().outcome("stage_coverage").status == "fail"


def test_a_first_block_that_names_what_it_was_given(tmp_path: Path) -> None:
    run = record(tmp_path, "given")
    assert run.unrecorded == []
    assert outputs(tmp_path)[0][:2] == ("load", "text")
    with audit.open(tmp_path) as store:
        assert store.trace(index=1).value(0) == TEXTS[1]
        assert store.replay(dataset=Words("given"), workers=0).identical == 2


def test_a_function_that_is_given_no_value_loads_it(tmp_path: Path) -> None:
    record(tmp_path, "function")
    rows = outputs(tmp_path)
    assert [row[0] for row in rows] == ["load", "letters", "count"]
    assert rows[0][1:4] == rows[1][1:4] == ("tensor", None, False)


@pytest.mark.parametrize("how", ["block", "given", "function"])
def test_outside_a_recording_it_does_nothing(how: str) -> None:
    assert torch.equal(Words(how)[0][0], count(letters(0)))
