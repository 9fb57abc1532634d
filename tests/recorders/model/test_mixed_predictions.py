"""Predictions of inputs that the loop mixed from several samples: kept with their parents, and graded as none of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_material import Questions
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import audit
from audit.recorders.model.row_origins import MixedRow, mix_rows

COUNT = 4
ORDER = torch.tensor([2, 1, 3, 0])
#: The samples of each place after a mix with `ORDER`; place 1 is mixed with itself.
PARENTS = {0: {0, 2}, 2: {2, 3}, 3: {3, 0}}


def cut(x: torch.Tensor) -> torch.Tensor:
    x[:, :, 1:3, :2] = x[ORDER, :, 1:3, :2]
    return x


def mixed_in_place(x: torch.Tensor) -> torch.Tensor:
    other = x[ORDER].mul_(0.3)
    return x.mul_(0.7).add_(other)


FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mixup": lambda x: 0.7 * x + 0.3 * x[ORDER],
    "permuted first": lambda x: 0.3 * x[ORDER] + 0.7 * x,
    "lerp": lambda x: torch.lerp(x, x[ORDER], 0.3),
    "index_select": lambda x: x * 0.7 + x.index_select(0, ORDER) * 0.3,
    "in place": mixed_in_place,
    "cutmix": cut,
    "where": lambda x: torch.where(torch.rand(1, 1, 4, 4) < 0.5, x, x[ORDER]),
    "then normalised": lambda x: (0.7 * x + 0.3 * x[ORDER] - 0.5) / 0.25,
    "then flattened": lambda x: (0.7 * x + 0.3 * x[ORDER]).flatten(1),
    "then chunked": lambda x: torch.cat((0.7 * x + 0.3 * x[ORDER]).chunk(2)),
}


def record(tmp_path: Path, loop: Callable[[Any, torch.Tensor], None]) -> Questions:
    images, labels = torch.randn(COUNT, 1, 4, 4), torch.tensor([0, 1, 2, 0])
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with audit.record(tmp_path / "lineage", strict=True) as run:
        run.model(model)
        for x, _ in run.loader(DataLoader(TensorDataset(images, labels), batch_size=COUNT)):
            loop(model, x)
    return Questions(tmp_path / "lineage")


@pytest.mark.parametrize("form", FORMS)
def test_mixed_rows_are_not_graded(tmp_path: Path, form: str) -> None:
    given: list[torch.Tensor] = []

    def loop(model: Any, x: torch.Tensor) -> None:
        given.append(model(FORMS[form](x)).detach())

    ask = record(tmp_path, loop)
    # Place 1 was mixed with itself, so it is that sample.
    assert ask("SELECT index, call, label FROM graded_predictions") == [(1, 0, 1)]
    assert ask("SELECT sum(count) FROM confusion") == [(1,)]
    assert ask("SELECT count(*) FROM wrong_predictions WHERE index <> 1") == [(0,)]
    assert ask("SELECT count(*) FROM lineage WHERE predicted IS NOT NULL AND index <> 1") == [(0,)]
    assert ask("SELECT s.loss = p.loss FROM steps s, graded_predictions p") == [(True,)]
    rows = ask("SELECT index, call, list_contains(operations, 'mix'), label, correct, loss, logits FROM predictions")
    assert {row[0] for row in rows} == {0, 1, 2, 3}
    for index, call, is_mixed, label, correct, loss, logits in rows:
        assert logits == pytest.approx(given[0][index].tolist())
        if index != 1:
            assert (call, is_mixed, label, correct, loss) == (1, True, None, None, None)
    parents: dict[int, set[int]] = {}
    for position, parent in ask("SELECT position, parent_index FROM parents WHERE number = 0"):
        parents.setdefault(position, set()).add(parent)
    assert parents == PARENTS
    shown = ask("SELECT position, list_sort([p.index FOR p IN parents]) FROM mixed_predictions")
    assert dict(shown) == {place: sorted(found) for place, found in PARENTS.items()}


@pytest.mark.parametrize("first", ["clean", "mixed"])
def test_the_clean_call_is_graded(tmp_path: Path, first: str) -> None:
    given: dict[str, torch.Tensor] = {}

    def loop(model: Any, x: torch.Tensor) -> None:
        inputs = {"clean": x, "mixed": 0.5 * x + 0.5 * x.flip(0)}
        for name in sorted(inputs, reverse=first == "mixed"):
            given[name] = model(inputs[name]).detach()

    ask = record(tmp_path, loop)
    rows = ask("SELECT logits FROM graded_predictions ORDER BY index")
    assert torch.tensor([row[0] for row in rows]).allclose(given["clean"])
    rows = ask("SELECT logits FROM mixed_predictions ORDER BY index")
    assert torch.tensor([row[0] for row in rows]).allclose(given["mixed"])
    assert ask("SELECT count(*) FROM predictions GROUP BY index, call") == [(1,)] * 8


def test_a_view_of_a_mixed_batch_is_not_the_sample(tmp_path: Path) -> None:
    def loop(model: Any, x: torch.Tensor) -> None:
        view = x.view(COUNT, 16)
        cut(x)
        model(view)

    ask = record(tmp_path, loop)
    assert ask("SELECT count(*) FROM graded_predictions WHERE index <> 1") == [(0,)]


def test_parents_said_by_hand_are_not_graded(tmp_path: Path) -> None:
    images, labels = torch.randn(COUNT, 1, 4, 4), torch.tensor([0, 1, 2, 0])
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with audit.record(tmp_path / "lineage", strict=True) as run:
        run.model(model)
        for x, _ in run.loader(DataLoader(TensorDataset(images, labels), batch_size=COUNT)):
            model(x)
            run.parents([[(0, 0.5), (3, 0.5)], [(1, 1.0)], [(2, 1.0)], [(3, 1.0)]])
    ask = Questions(tmp_path / "lineage")
    assert ask("SELECT index FROM graded_predictions ORDER BY 1") == [(1,), (2,), (3,)]
    assert ask("SELECT index, parents[1].weight FROM mixed_predictions") == [(0, 0.5)]


def test_samples_that_are_mixed_with_themselves_stay() -> None:
    batch = object()
    assert mix_rows((batch, 1), [(batch, 1), (batch, 1)]) == (batch, 1)
    mixed = mix_rows((batch, 1), [(batch, 1), MixedRow(batch, 1, ((batch, 1), (batch, 2)))])
    assert isinstance(mixed, MixedRow)
    assert mixed.parents == ((batch, 1), (batch, 2))
    assert mix_rows((batch, 1), [(batch, 1), None]) is None
