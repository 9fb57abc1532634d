"""The folds of a cross-validation in one recording: what they share is not reported, and a fault still is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from audit.api import record
from audit.checks.report import Report
from audit.checks.runner import run_checks

COUNT, FOLDS = 60, 3
INPUTS = torch.randn(COUNT, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (COUNT,), generator=torch.Generator().manual_seed(1))


class Rows(Dataset[Any]):
    """Rows of noise in memory, all or a part of them."""

    def __init__(self, chosen: Sequence[int] = range(COUNT), *, changes: bool = False, moves: bool = False) -> None:
        self.rows, self.labels = INPUTS[list(chosen)].clone(), LABELS[list(chosen)].clone()
        self.changes, self.moves = changes, moves

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.changes:
            self.rows[index].add_(1.0)
        if self.moves:
            self.labels[index] += 1
        return self.rows[index].clone(), int(self.labels[index])


#: What makes the part of a fold, by the kind of its dataset; `whole` is the one dataset of those that choose from it.
PARTS: dict[str, Callable[[Rows, list[int]], Any]] = {
    "Subset": Subset,
    "Subset of a new dataset": lambda whole, chosen: Subset(Rows(), chosen),
    "TensorDataset": lambda whole, chosen: TensorDataset(INPUTS[chosen], LABELS[chosen]),
    "its own class": lambda whole, chosen: Rows(chosen),
    "list": lambda whole, chosen: [(INPUTS[n], int(LABELS[n])) for n in chosen],
}


def cross_validate(
    place: Path, part: Callable[[Rows, list[int]], Any], *, splits: bool, epochs: int = 2, whole: Rows | None = None
) -> Report:
    whole = whole or Rows()
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(2)).tolist()
    size = COUNT // FOLDS
    with record(place / "lineage") as run:
        for fold in range(FOLDS):
            held = order[fold * size : (fold + 1) * size]
            kept = [number for number in order if number not in held]
            loaders = [
                run.loader(DataLoader(part(whole, chosen), 10, shuffle=name == "train"), split=name if splits else None)
                for name, chosen in (("train", kept), ("val", held))
            ]
            for _ in range(epochs):
                for loader in loaders:
                    for _ in loader:
                        pass
    return run_checks(place / "lineage", record=False)


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("kind", PARTS)
def test_folds_load_the_same(tmp_path: Path, kind: str, splits: bool) -> None:
    outcome = cross_validate(tmp_path, PARTS[kind], splits=splits).outcome("stable_load")
    assert outcome.status in ("pass", "skip"), outcome.message


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("kind", ["Subset", "Subset of a new dataset"])
def test_a_sample_of_several_folds_is_no_duplicate(tmp_path: Path, kind: str, splits: bool) -> None:
    outcome = cross_validate(tmp_path, PARTS[kind], splits=splits).outcome("duplicates")
    assert outcome.status == "pass", outcome.message


def test_two_samples_of_one_content_are_duplicates_in_folds(tmp_path: Path) -> None:
    whole = Rows()
    whole.rows[7] = whole.rows[3]
    outcome = cross_validate(tmp_path, Subset, splits=False, whole=whole).outcome("duplicates")
    assert (outcome.status, outcome.total) == ("fail", 1), outcome.message
    assert "dataset://3" in outcome.message
    assert "dataset://7" in outcome.message


def test_a_dataset_that_has_a_sample_twice_has_a_duplicate(tmp_path: Path) -> None:
    with record(tmp_path / "lineage") as run:
        for _ in run.loader(DataLoader(Subset(Rows(), [1, 2, 3, 2]), 2)):
            pass
    assert run_checks(tmp_path / "lineage", record=False).outcome("duplicates").total == 1


def test_a_sample_that_changes_in_place_is_found_in_folds_of_one_dataset(tmp_path: Path) -> None:
    outcome = cross_validate(tmp_path, Subset, splits=True, whole=Rows(changes=True)).outcome("stable_load")
    assert outcome.status == "fail"
    assert "a stage may change it in place" in outcome.message


def test_a_sample_that_changes_in_place_is_found_in_folds_of_several_datasets(tmp_path: Path) -> None:
    """Three datasets of a split have at most three values at one index; two of these have the same first row."""
    outcome = cross_validate(tmp_path, lambda _, chosen: Rows(chosen, changes=True), splits=True).outcome("stable_load")
    assert outcome.status == "fail"
    assert "gave 4 different values in 3 datasets" in outcome.message


def test_a_label_that_moves_is_found_in_folds_of_several_datasets(tmp_path: Path) -> None:
    outcome = cross_validate(tmp_path, lambda _, chosen: Rows(chosen, moves=True), splits=True, epochs=4)
    assert "does not have the same label" in outcome.outcome("stable_load").findings[0].message
