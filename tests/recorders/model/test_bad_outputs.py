"""Outputs and targets that do not fit: the loop goes on, the run says what was wrong, and nothing false is stored."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_material import Asked
from torch import nn
from torch.utils.data import DataLoader, Dataset

import audit

COUNT, BATCH = 4, 2


class Squares(Dataset):  # type: ignore[type-arg]
    def __init__(self, target: Callable[[int], Any]) -> None:
        self.target = target

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 8, 8), float(index)), self.target(index)


class Answer(nn.Module):
    """Returns what a function makes of its input and of the number of the call."""

    def __init__(self, answer: Callable[[Any, int], Any]) -> None:
        super().__init__()
        self.answer, self.calls = answer, 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.answer(x, self.calls)


def boxes(corners: list[float], labels: int = 1) -> dict[str, torch.Tensor]:
    found = torch.tensor(corners).reshape(-1, 4)
    return {"boxes": found, "labels": torch.ones(labels, dtype=torch.long), "scores": torch.ones(len(found))}


def objects(count: int = 1, labels: int = 1) -> Any:
    whole = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
    return {"boxes": whole.repeat(count, 1), "labels": torch.ones(labels, dtype=torch.long)}


def logits(x: Any, width: int = 3) -> torch.Tensor:
    return torch.zeros(len(x), width)


WHOLE = [0.0, 0.0, 4.0, 4.0]
#: By name: the target of a sample, the model's answer, what the run says, and how many predictions are stored.
CASES: dict[str, tuple[Callable[[int], Any], Callable[[Any, int], Any], str, int]] = {
    "none": (lambda n: n % 2, lambda x, call: None, "returned None", 0),
    "a generator": (lambda n: n % 2, lambda x, call: (row for row in x), "returned a generator", 0),
    "a text": (lambda n: n % 2, lambda x, call: "cat", "returned a str", 0),
    "class numbers": (lambda n: n % 2, lambda x, call: torch.zeros(len(x)).long(), "not logits", 0),
    "too few rows": (lambda n: n % 2, lambda x, call: torch.zeros(1, 3), "first axis is not the batch", 0),
    "no classes": (lambda n: n % 2, lambda x, call: logits(x, 0), "it has no classes", 0),
    "another width": (lambda n: n % 2, lambda x, call: logits(x, 2 + call), "gave 3 numbers for each sample, and now 4", 2),
    "another form": (
        lambda n: n % 2,
        lambda x, call: logits(x) if call < 2 else (logits(x), logits(x, 4)),
        "more than one entry",
        2,
    ),
    "a class beyond the list": (lambda n: 99, lambda x, call: logits(x), "not one of its 3 classes", 4),
    "too few pictures": (lambda n: objects(), lambda x, call: [boxes(WHOLE)], "given 2 pictures", 0),
    "too many labels": (lambda n: objects(), lambda x, call: [boxes(WHOLE, 2) for _ in x], "with 2 labels", 0),
    "boxes of NaN": (
        lambda n: objects(),
        lambda x, call: [boxes([0.0, 0.0, float("nan"), 4.0]) for _ in x],
        "recorded and not graded",
        4,
    ),
    "reversed boxes": (
        lambda n: objects(),
        lambda x, call: [boxes([4.0, 4.0, 0.0, 0.0]) for _ in x],
        "recorded and not graded",
        4,
    ),
    "targets of two numbers": (lambda n: objects(2, 1), lambda x, call: [boxes(WHOLE) for _ in x], "2 boxes and 1 labels", 4),
    "a mask of another size": (
        lambda n: torch.zeros(4, 4).long(),
        lambda x, call: torch.zeros(len(x), 3, 8, 8),
        "4 × 4 and the predicted one 8 × 8",
        4,
    ),
    "a mask with unknown classes": (
        lambda n: torch.full((8, 8), 9),
        lambda x, call: torch.zeros(len(x), 3, 8, 8),
        "has no output for",
        4,
    ),
}  # fmt: skip


def collate(items: list[Any]) -> Any:
    return tuple(zip(*items, strict=True))


def record(
    path: Path, target: Callable[[int], Any], answer: Callable[[Any, int], Any], *, empty: bool = False
) -> Asked:
    has_boxes = isinstance(target(0), dict)
    with audit.record(path, capture="digest") as run, warnings.catch_warnings():
        warnings.simplefilter("ignore", audit.RecordingWarning)
        loader = run.loader(DataLoader(Squares(target), batch_size=BATCH, collate_fn=collate if has_boxes else None))
        model = run.model(Answer(answer))
        for x, _ in loader:
            if empty:
                model(x[:0])
            model(list(x) if has_boxes else x)
    assert model.calls == (COUNT // BATCH) * (1 + empty), "the loop went on"
    return Asked(path)


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
@pytest.mark.parametrize("name", CASES)
def test_the_run_says_what_does_not_fit(tmp_path: Path, name: str) -> None:
    target, answer, says, stored = CASES[name]
    ask = record(tmp_path, target, answer)
    assert any(says in warning for warning in ask.warnings), ask.warnings
    assert ask("SELECT status FROM runs") == [("complete",)]
    assert ask("SELECT count(*) FROM predictions") == [(stored,)]
    assert ask("SELECT count(*) FROM boxes WHERE outcome = 'tp'") == [(0,)]
    assert ask("SELECT count(*) FROM predictions WHERE correct AND label > 1") == [(0,)]
    assert ask("SELECT count(*) FROM mask_scores WHERE shared_pixels > 0") == [(0,)]


def test_pictures_without_objects(tmp_path: Path) -> None:
    ask = record(tmp_path, lambda n: objects(0, 0), lambda x, call: [boxes([], 0) for _ in x])
    assert ask("SELECT count(*) FROM predictions") == [(COUNT,)]
    assert ask("SELECT count(*) FROM boxes") == [(0,)]


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
def test_a_batch_of_no_rows(tmp_path: Path) -> None:
    ask = record(tmp_path, lambda n: n % 2, lambda x, call: logits(x), empty=True)
    assert ask("SELECT index, count(*) FROM predictions GROUP BY index ORDER BY index") == [
        (n, 1) for n in range(COUNT)
    ]
