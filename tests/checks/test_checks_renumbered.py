"""A collate function that gives labels other numbers: predictions are not judged against those of the items; other faults still are."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import audit
from audit.api import record
from audit.checks.report import Report
from audit.checks.runner import run_checks
from audit.recorders.problems import RecordingWarning

COUNT, CLASSES = 300, 10
JUDGING = ("accuracy", "label_range", "class_order", "label_issues", "calibration", "per_class_accuracy", "head")
Items = list[tuple[Tensor, int]]


class Rows(Dataset[Any]):
    """Rows that say their class, whose labels begin at `first` and are in turn, so that a shift by one row looks like a shift by one class."""

    def __init__(self, first: int = 0, *, classes: list[str] | None = None) -> None:
        self.first = first
        if classes is not None:
            self.classes = classes
        self.numbers = torch.arange(COUNT) % CLASSES
        noise = torch.randn(COUNT, CLASSES, generator=torch.Generator().manual_seed(0))
        self.rows = 0.1 * noise + nn.functional.one_hot(self.numbers, CLASSES)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.rows[index], int(self.numbers[index]) + self.first


class Knows(nn.Module):
    """A model that knows which number the rows of a class have in a batch."""

    def __init__(self, numbers: list[int]) -> None:
        super().__init__()
        self.numbers, self.outputs = numbers, max(numbers) + 1

    def forward(self, rows: Tensor) -> Tensor:
        known = torch.tensor(self.numbers)[rows[:, :CLASSES].argmax(1)]
        return 9.0 * nn.functional.one_hot(known, self.outputs)


def judge(
    place: Path, dataset: Dataset[Any], numbers: Callable[[Tensor], Tensor] | None, model: nn.Module, label: Any = None
) -> Report:
    def collate(items: Items) -> Any:
        labels = torch.tensor([label for _, label in items])
        return torch.stack([row for row, _ in items]), labels if numbers is None else numbers(labels)

    with warnings.catch_warnings(), record(place / "lineage") as run, torch.no_grad():
        warnings.simplefilter("ignore", RecordingWarning)
        loader, model = (
            run.loader(DataLoader(dataset, 20, collate_fn=collate), label=label, split="val"),
            run.model(model.eval()),
        )
        for rows, _ in loader:
            model(rows)
    return run_checks(place / "lineage", record=False)


def failed(report: Report) -> list[str]:
    return [outcome.check for outcome in report.outcomes if outcome.status in ("fail", "error")]


#: The first label of the items, what the collate function makes of labels, and the numbers that a model of the batches predicts.
RENUMBERED: dict[str, tuple[int, Callable[[Tensor], Tensor], list[int]]] = {
    "merged": (0, lambda labels: labels // 2, [number // 2 for number in range(CLASSES)]),
    "from one": (0, lambda labels: labels + 1, [number + 1 for number in range(CLASSES)]),
    "from zero": (1, lambda labels: labels - 1, [*range(CLASSES)]),
    "merged, one-hot": (0, lambda labels: nn.functional.one_hot(labels // 2, 5).float(), [number // 2 for number in range(CLASSES)]),
}  # fmt: skip


@pytest.mark.parametrize("name", RENUMBERED)
def test_a_model_of_the_numbers_in_the_batches_is_not_judged_against_others(tmp_path: Path, name: str) -> None:
    first, numbers, known = RENUMBERED[name]
    assert failed(judge(tmp_path, Rows(first), numbers, Knows(known))) == []


def test_outputs_of_merged_classes_are_not_missing(tmp_path: Path) -> None:
    named = Rows(classes=[f"class {number}" for number in range(CLASSES)])
    report = judge(tmp_path, named, RENUMBERED["merged"][1], Knows(RENUMBERED["merged"][2]))
    assert failed(report) == []
    assert any(
        "a collate function gives the labels of val other numbers" in note for note in report.outcome("head").notes
    )


def test_a_check_that_is_skipped_says_what_to_do(tmp_path: Path) -> None:
    outcome = judge(tmp_path, Rows(), RENUMBERED["merged"][1], Knows(RENUMBERED["merged"][2])).outcome("accuracy")
    assert outcome.status == "skip"
    assert outcome.message == (
        "a collate function gives the labels of val other numbers (1 → 0, 2 → 1, 3 → 1, 4 → 2 and 5 more), and predictions are graded "
        "against those of the items; pass label= to run.loader, a function of the item that returns the number in the batch"
    )


def test_what_it_says_makes_the_model_judged(tmp_path: Path) -> None:
    _, numbers, known = RENUMBERED["merged"]
    right = judge(tmp_path / "right", Rows(), numbers, Knows(known), label=lambda item: item[1] // 2)
    assert right.outcome("accuracy").status == "pass"
    wrong = judge(tmp_path / "wrong", Rows(), numbers, Knows([*reversed(known)]), label=lambda item: item[1] // 2)
    assert "class_order" in failed(wrong)


@pytest.mark.parametrize(
    ("numbers", "known", "check"),
    [
        (None, [*range(1, CLASSES), 0], "class_order"),
        (None, [0] * 5 + [1] * 5, "accuracy"),
        (None, [number // 2 for number in range(CLASSES)], "label_range"),
        (lambda labels: torch.where(labels == 3, -100, labels), [*range(1, CLASSES), 0], "class_order"),
        (lambda labels: labels[torch.randperm(len(labels))], [*range(1, CLASSES), 0], "class_order"),
    ],
)  # fmt: skip
def test_a_model_of_other_numbers_than_those_of_the_batches_is_found(
    tmp_path: Path, numbers: Callable[[Tensor], Tensor] | None, known: list[int], check: str
) -> None:
    torch.manual_seed(0)
    assert check in failed(judge(tmp_path, Rows(), numbers, Knows(known)))


@pytest.mark.parametrize(
    ("numbers", "label", "says"),
    [
        (lambda labels: labels // 2, None, True),
        (lambda labels: labels // 2, lambda item: item[1] // 2, False),
        (None, None, False),
        (lambda labels: torch.where(labels == 3, -100, labels), None, False),
        (lambda labels: torch.where(labels == 3, 255, labels), None, False),
    ],
)  # fmt: skip
def test_a_run_says_at_once_that_the_batches_have_other_numbers(
    tmp_path: Path, numbers: Callable[[Tensor], Tensor] | None, label: Any, says: bool
) -> None:
    judge(tmp_path, Rows(), numbers, Knows([*range(CLASSES)]), label)
    with audit.open(tmp_path / "lineage") as store:
        found = [text for text in store.run().warnings if "a batch has other numbers, such as 0 for 1" in text]
    assert len(found) == says
