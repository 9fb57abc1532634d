"""Targets and outputs of less common tasks: each is graded for what it is, or the run says what is not evident."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recording_material import Questions
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

import audit
from audit.errors import UsageError

COUNT = 11


def vector(index: int) -> torch.Tensor:
    return torch.randn(6, generator=torch.Generator().manual_seed(index))


class Items(Dataset):  # type: ignore[type-arg]
    def __init__(self, target: Any) -> None:
        self.target = target

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return vector(index), self.target(index)


def record(path: Path, model: nn.Module, wanted: Any, collate: Any = None, **options: Any) -> Questions:
    with audit.record(path / "lineage") as run:
        run.model(model, **options)
        for x, _ in run.loader(DataLoader(Items(wanted), batch_size=4, collate_fn=collate)):
            model(x)
    return Questions(path / "lineage")


def sort_by_content(items: list[Any]) -> Any:
    return default_collate(sorted(items, key=lambda item: -float(item[0][0])))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kind, self.size = nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"kind": self.kind(x), "size": self.size(x)[:, 0]}


@pytest.mark.parametrize(
    "target", [None, {"kind": lambda batch: batch[1]["kind"], "size": lambda batch: batch[1]["size"]}]
)
def test_targets_of_heads_follow_a_collate_function_that_sorts(tmp_path: Path, target: Any) -> None:
    model = TwoHeads()
    output = {"kind": "logits", "size": "regression"}
    ask = record(tmp_path, model, _two_targets, sort_by_content, output=output, target=target)
    for index, label in ask("SELECT index, label FROM predictions WHERE head = 'kind'"):
        assert label == index % 3
    rows = ask("SELECT index, target[1], output[1] FROM predictions WHERE head = 'size'")
    assert [(index, index) for index in range(COUNT)] == sorted((index, round(wanted)) for index, wanted, _ in rows)
    for index, _, given in rows:
        assert given == pytest.approx(float(model.size(vector(index))), abs=1e-5)


def _two_targets(index: int) -> dict[str, Any]:
    return {"kind": index % 3, "size": float(index)}


@pytest.mark.parametrize("kind", [None, "logits"])
def test_one_output_beside_targets_0_and_1_is_a_binary_classifier(tmp_path: Path, kind: str | None) -> None:
    model = nn.Linear(6, 1)
    ask = record(tmp_path, model, lambda index: float(index % 2), output=kind)
    values = torch.cat([model(vector(index)) for index in range(COUNT)])
    wanted = (torch.arange(COUNT) % 2).float()
    losses = nn.functional.binary_cross_entropy_with_logits(values, wanted, reduction="none")
    rows = ask("SELECT label, predicted, correct, loss FROM predictions ORDER BY index")
    for index, (label, predicted, correct, loss) in enumerate(rows):
        assert (label, predicted) == (index % 2, int(values[index] > 0))
        assert correct == (label == predicted)
        assert loss == pytest.approx(float(losses[index]), rel=1e-5)


@pytest.mark.parametrize(
    ("outputs", "target"),
    [
        pytest.param(3, lambda index: index / 3, id="quantiles"),
        pytest.param(1, lambda index: float(index) if index > 5 else float(index % 2), id="counts"),
        pytest.param(3, lambda index: [[1.0, 0, 0], [1.0, 1, 0]][index > 5], id="several classes, later"),
        pytest.param(3, lambda index: torch.tensor([index, 2]), id="two whole numbers"),
    ],
)
def test_targets_that_do_not_fit_the_output_are_doubted(tmp_path: Path, outputs: int, target: Any) -> None:
    def as_tensor(index: int) -> Any:
        found = target(index)
        return torch.tensor(found) if isinstance(found, list) else found

    with pytest.warns(audit.RecordingWarning, match=r"Say what they are with output \(--output\)"):
        record(tmp_path, nn.Linear(6, outputs), as_tensor)


class Points(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x).view(-1, 4, 2)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [None, "regression"])
def test_points_are_a_regression(tmp_path: Path, kind: str | None) -> None:
    model = Points()
    ask = record(tmp_path, model, lambda index: vector(index)[:4, None] * torch.tensor([1.0, 2.0]), output=kind)
    assert ask("SELECT output, task FROM runs") == [("regression", "regression")]
    rows = ask("SELECT index, target, output, loss FROM predictions ORDER BY index")
    assert len(rows) == COUNT
    for index, target, output, loss in rows:
        wanted, given = vector(index)[:4, None] * torch.tensor([1.0, 2.0]), model(vector(index)[None])[0].detach()
        np.testing.assert_allclose(target, wanted.flatten(), rtol=1e-5)
        np.testing.assert_allclose(output, given.flatten(), rtol=1e-4, atol=1e-6)
        assert loss == pytest.approx(float(((given - wanted) ** 2).mean()), rel=1e-4)


class Wide(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(len(x), 3, 80, 80)


def test_a_picture_is_not_stored_as_numbers(tmp_path: Path) -> None:
    with pytest.warns(audit.RecordingWarning, match="19,200 numbers for each sample"):
        ask = record(tmp_path, Wide(), float, output="regression")
    assert ask("SELECT count(*) FROM predictions") == [(0,)]


class Sequences(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, None].repeat(1, 1, 5)


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, 2 * x


@pytest.mark.parametrize(("model", "option"), [(Sequences(), "output="), (Pair(), "logits=")])
def test_what_cannot_be_read_names_the_option(tmp_path: Path, model: nn.Module, option: str) -> None:
    with pytest.warns(audit.RecordingWarning, match=option):
        record(tmp_path, model, lambda index: index % 3)


def test_a_scripted_model_is_recorded_in_a_module(tmp_path: Path) -> None:
    plain = nn.Linear(6, 3)
    scripted = torch.jit.script(plain)
    with audit.record(tmp_path / "x") as run, pytest.raises(UsageError, match="TorchScript"):
        run.model(scripted)
    ask = record(tmp_path, nn.Sequential(scripted), lambda index: index % 3)
    rows = ask("SELECT index, logits FROM predictions ORDER BY index")
    assert len(rows) == COUNT
    for index, logits in rows:
        np.testing.assert_allclose(logits, plain(vector(index)).detach(), rtol=1e-4, atol=1e-6)
