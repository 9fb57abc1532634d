"""A collate function that exchanges labels is found; one that changes them on purpose is not an error."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from audit.api import record
from audit.checks.base import Finding
from audit.checks.report import CheckOutcome
from audit.checks.runner import run_checks

Items = list[tuple[Tensor, int]]
COUNT, BATCH, CLASSES = 120, 12, 5


class Rows(Dataset[Any]):
    """Rows of noise, and labels that a hash of the index gives."""

    def __init__(self) -> None:
        self.rows = torch.randn(COUNT, 24, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.rows[index], (index * 37 + index // 7) % CLASSES


def inputs(items: Items) -> Tensor:
    return torch.stack([x for x, _ in items])


def labels(items: Items) -> Tensor:
    return torch.tensor([y for _, y in items])


def judge(place: Path, collate: Callable[[Items], Any] | None, *, epochs: int = 1, count: int = COUNT) -> CheckOutcome:
    rows = torch.utils.data.Subset(Rows(), range(count))
    with record(place / "lineage") as run:
        loader = run.loader(DataLoader(rows, BATCH, collate_fn=collate, shuffle=True), split="train")
        for _ in run.epochs(epochs):
            for _ in loader:
                pass
    return run_checks(place / "lineage", only=["alignment"], record=False).outcome("alignment")


def one_finding(outcome: CheckOutcome) -> Finding:
    assert [outcome.status, outcome.total] == ["fail", 1]
    return outcome.findings[0]


def sort_inputs(items: Items) -> Any:
    return inputs(sorted(items, key=lambda item: -float(item[0].sum()))), labels(items)


def shuffle_labels(items: Items) -> Any:
    return inputs(items), labels(items)[torch.randperm(len(items))]


def swap_two(items: Items) -> Any:
    """Exchange the labels of two samples in each batch."""
    own = labels(items)
    first = 0
    second = next((n for n, label in enumerate(own) if label != own[first]), 0)
    own[[first, second]] = own[[second, first]]
    return inputs(items), own


@pytest.mark.parametrize("collate", [sort_inputs, shuffle_labels, swap_two])
def test_exchanged_labels_are_an_error(tmp_path: Path, collate: Callable[[Items], Any]) -> None:
    torch.manual_seed(0)
    outcome = judge(tmp_path, collate, epochs=2)
    finding = one_finding(outcome)
    assert outcome.severity == "error"
    assert finding.message.startswith("A collate function exchanges labels: ")
    assert "of train" in finding.message
    assert finding.source is not None
    assert finding.sql is not None


def test_two_exchanged_labels_in_one_batch_are_a_warning(tmp_path: Path) -> None:
    outcome = judge(tmp_path, swap_two, count=BATCH)
    assert one_finding(outcome).message.startswith(
        "A collate function changes labels: 2 of 12 samples of train, such as "
    )
    assert outcome.severity == "warning"


def test_classes_that_a_collate_function_exchanges_are_a_warning(tmp_path: Path) -> None:
    swapped = torch.tensor([1, 0, 2, 3, 4])
    outcome = judge(tmp_path, lambda items: (inputs(items), swapped[labels(items)]))
    assert one_finding(outcome).message == "A collate function exchanges classes of train: 0 → 1, 1 → 0."
    assert outcome.severity == "warning"


def test_labels_that_are_replaced_at_random_are_a_warning(tmp_path: Path) -> None:
    """Noise on labels may be there on purpose."""
    torch.manual_seed(0)

    def add_noise(items: Items) -> Any:
        own = labels(items)
        return inputs(items), torch.where(torch.rand(len(own)) < 0.3, torch.randint(CLASSES, own.shape), own)

    outcome = judge(tmp_path, add_noise)
    assert one_finding(outcome).message.startswith("A collate function changes labels: ")
    assert outcome.severity == "warning"


mix, cut = v2.MixUp(num_classes=CLASSES), v2.CutMix(num_classes=CLASSES)


def mix_by_hand(items: Items) -> Any:
    """MixUp that returns both labels and the share."""
    x, y, order = inputs(items), labels(items), torch.randperm(len(items))
    return 0.7 * x + 0.3 * x[order], y, y[order], 0.7


def mix_inputs(items: Items) -> Any:
    """MixUp that keeps the label of the larger share."""
    x, y, order = inputs(items), labels(items), torch.randperm(len(items))
    return 0.3 * x + 0.7 * x[order], y[order]


def ignore_some(items: Items) -> Any:
    return inputs(items), torch.where(torch.rand(len(items)) < 0.5, labels(items), -100)


def ignore_some_as_255(items: Items) -> Any:
    return inputs(items), torch.where(torch.rand(len(items)) < 0.5, labels(items), 255)


def smooth(items: Items) -> Any:
    return inputs(items), functional.one_hot(labels(items), CLASSES) * 0.9 + 0.1 / CLASSES


def reorder(items: Items) -> Any:
    random.shuffle(items)
    return inputs(items), labels(items)


def drop_some(items: Items) -> Any:
    kept = [item for item in items if item[1] != 2]
    return inputs(kept), labels(kept)


def two_views(items: Items) -> Any:
    return torch.cat([inputs(items)] * 2), labels(items).repeat(2)


CLEAN: dict[str, Callable[[Items], Any] | None] = {
    "torch's own": None,
    "stacked": lambda items: (inputs(items), labels(items)),
    "in another order": reorder,
    "with less samples": drop_some,
    "two views": two_views,
    "MixUp": lambda items: mix(inputs(items)[:, None, None], labels(items)),
    "CutMix": lambda items: cut(inputs(items)[:, None, None], labels(items)),
    "MixUp by hand": mix_by_hand,
    "MixUp of inputs": mix_inputs,
    "ignored labels": ignore_some,
    "ignored as 255": ignore_some_as_255,
    "one-hot": lambda items: (inputs(items), functional.one_hot(labels(items), CLASSES)),
    "smoothed": smooth,
    "fractions for a binary loss": lambda items: (inputs(items), (labels(items) == 0).float()),
    "numbered from one": lambda items: (inputs(items), labels(items) + 1),
    "merged": lambda items: (inputs(items), labels(items) // 2),
    "one against the rest": lambda items: (inputs(items), (labels(items) == 3).long()),
    "lengths instead": lambda items: (inputs(items), torch.randint(20, 90, (len(items),))),
}


@pytest.mark.parametrize("name", CLEAN)
def test_labels_that_are_changed_on_purpose_are_no_finding(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    assert judge(tmp_path, CLEAN[name], epochs=2).status in ("pass", "skip")


@pytest.mark.parametrize(
    ("collate", "says"),
    [
        (CLEAN["numbered from one"], "a collate function gives the labels of train other numbers (0 → 1, 1 → 2, 2 → 3, 3 → 4 and 1 more)"),
        (ignore_some, "samples of train have the number -100 instead of a label in their batch"),
        (CLEAN["lengths instead"], "the batches of train have other numbers than the items' labels; they were not compared"),
    ],
)  # fmt: skip
def test_a_note_says_what_was_changed(tmp_path: Path, collate: Callable[[Items], Any], says: str) -> None:
    notes = judge(tmp_path, collate).notes
    assert any(says in note for note in notes), notes
