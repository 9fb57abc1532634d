"""Models with several outputs that each have a target of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recording_material import Questions
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, Dataset

import audit
from audit.errors import UsageError
from audit.report.trace_text import trace_tree

COUNT = 10


class Digits(Dataset):  # type: ignore[type-arg]
    classes = ("zero", "one", "two")

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(6, generator=generator), {"digit": index % 3, "angle": index / 10, "tags": _tags(index)}


def _tags(index: int) -> torch.Tensor:
    return torch.tensor([index % 2, index % 5 == 0, 1.0])


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.digit, self.angle, self.tags = nn.Linear(6, 3), nn.Linear(6, 1), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"digit": self.digit(x), "angle": self.angle(x)[:, 0], "tags": self.tags(x)}


def record(tmp_path: Path, model: nn.Module, dataset: Any, **options: Any) -> tuple[Questions, list[Any]]:
    with audit.record(tmp_path / "lineage", strict=options.pop("strict", True)) as run:
        run.model(model, **options)
        given = [model(batch[0]) for batch in run.loader(DataLoader(dataset, batch_size=4))]
    return Questions(tmp_path / "lineage"), given


OUTPUT = {"digit": "logits", "angle": "regression", "tags": "multilabel"}


def test_each_head_is_graded_against_its_own_target(tmp_path: Path) -> None:
    ask, given = record(tmp_path, Heads(), Digits(), output=OUTPUT)
    digit, angle, tags = (torch.cat([one[name] for one in given]).detach() for name in OUTPUT)
    rows = ask("SELECT head, call, label, predicted, correct, loss, label_name FROM predictions ORDER BY index, call")
    assert [row[0] for row in rows] == [*OUTPUT] * COUNT
    assert [row[1] for row in rows] == [0, 1, 2] * COUNT
    labels = torch.arange(COUNT) % 3
    loss = nn.functional.cross_entropy(digit, labels, reduction="none")
    for index in range(COUNT):
        _, _, label, predicted, correct, own, _ = rows[3 * index]
        assert (label, predicted) == (int(labels[index]), int(digit[index].argmax()))
        assert correct == (label == predicted)
        assert own == pytest.approx(float(loss[index]), rel=1e-5)
        assert rows[3 * index + 1][5] == pytest.approx(float((angle[index] - index / 10) ** 2), rel=1e-4)
        scores = torch.sigmoid(tags[index])
        assert rows[3 * index + 2][4] == bool(((scores > 0.5) == (_tags(index) > 0.5)).all())
    residuals = dict(ask("SELECT index, residual[1] FROM head_predictions WHERE head = 'angle'"))
    assert all(residuals[n] == pytest.approx(float(angle[n]) - n / 10, abs=1e-5) for n in range(COUNT))
    heads = {
        head: (samples, graded, accuracy)
        for head, samples, graded, accuracy in ask("SELECT head, samples, graded, accuracy FROM heads")
    }
    right = float((digit.argmax(1) == labels).float().mean())
    assert heads["digit"] == (COUNT, COUNT, pytest.approx(right))
    assert heads["angle"] == (COUNT, COUNT, None)
    assert ask("SELECT accuracy, output FROM runs") == [(pytest.approx(right), "logits")]
    assert ask("SELECT count(*) FROM wrong_predictions") == [(round((1 - right) * COUNT),)]
    assert ask("SELECT DISTINCT port FROM outputs ORDER BY 1") == [("angle",), ("digit",), ("tags",)]
    console = Console(record=True, width=160)
    console.print(trace_tree(audit.open(tmp_path / "lineage").trace(index=2)))
    text = console.export_text()
    assert "target 0.2" in text
    assert all(f"Heads {name}, call" in text for name in OUTPUT)


class Pairs(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.full((6,), float(index)), index % 3, index % 2


class Tuple(Heads):
    def forward(self, x: torch.Tensor) -> Any:
        return self.digit(x), self.tags(x)[:, :2]


@pytest.mark.parametrize("target", [{0: 1, 1: 2}, {0: lambda batch: batch[1], "1": lambda batch: batch[2]}])
def test_heads_by_position(tmp_path: Path, target: Any) -> None:
    ask, given = record(tmp_path, Tuple(), Pairs(), output={0: "logits", 1: None}, target=target)
    found = ask("SELECT head, label, predicted FROM predictions ORDER BY call, index")
    wanted = [("0", n % 3) for n in range(COUNT)] + [("1", n % 2) for n in range(COUNT)]
    assert [row[:2] for row in found] == wanted
    classes = [*torch.cat([one[0] for one in given]).argmax(1), *torch.cat([one[1] for one in given]).argmax(1)]
    assert [row[2] for row in found] == [int(one) for one in classes]


def test_a_head_without_a_target_is_not_graded(tmp_path: Path) -> None:
    with pytest.warns(audit.RecordingWarning, match="no target for the output digit"):
        ask, _ = record(tmp_path, Heads(), Pairs(), output={"digit": "logits"}, strict=False)
    assert ask("SELECT count(*), count(correct), count(label) FROM predictions") == [(COUNT, 0, 0)]


def test_a_head_that_is_not_there_leaves_the_others(tmp_path: Path) -> None:
    with pytest.warns(audit.RecordingWarning, match="without 'colour'"):
        ask, _ = record(tmp_path, Heads(), Digits(), output={"colour": "logits", "digit": "logits"}, strict=False)
    assert ask("SELECT DISTINCT head FROM predictions") == [("digit",)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "logits", "target": {"digit": 1}}, "several graded outputs"),
        ({"output": OUTPUT, "logits": "digit"}, "logits picks one"),
        ({"output": {}}, "empty dict"),
        ({"output": OUTPUT, "target": {"colour": 1}}, "names colour"),
        ({"output": OUTPUT, "target": {"digit": True}}, "target of digit cannot be True"),
        ({"output": {"digit": "numbers"}}, "output cannot be 'numbers'"),
    ],
)
def test_refused_heads(tmp_path: Path, options: Any, message: str) -> None:
    with audit.record(tmp_path / "lineage") as run, pytest.raises(UsageError, match=message):
        run.model(Heads(), **options)
