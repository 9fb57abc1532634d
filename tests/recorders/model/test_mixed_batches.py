"""MixUp and CutMix: what each place of a batch was mixed from, and nothing changed by listening."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recording_material import Questions
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms import v2

import audit
from audit.recorders.model import mixing
from audit.recorders.model.mixing import observe_mixes


class Images(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.full((1, 4, 4), float(index)), index % 3


class MixedCollate:
    def __init__(self, *mixers: Any) -> None:
        self.mixers = mixers

    def __call__(self, items: list[Any]) -> Any:
        batch = default_collate(items)
        for mixer in self.mixers:
            batch = mixer(*batch)
        return batch


def mixers(name: str) -> list[Any]:
    if name == "both":
        return [v2.MixUp(num_classes=3), v2.MixUp(num_classes=None)]
    return [{"mixup": v2.MixUp, "cutmix": v2.CutMix}[name](num_classes=3)]


@pytest.mark.workers
@pytest.mark.parametrize("where", ["collate", "worker", "loop", "loop without a model", "loop, dataset wrapped"])
@pytest.mark.parametrize("name", ["mixup", "cutmix", "both"])
def test_parents(tmp_path: Path, name: str, where: str) -> None:
    def loop(run: Any) -> list[torch.Tensor]:
        torch.manual_seed(4)
        random.seed(4)
        chosen = mixers(name)
        in_collate = where in ("collate", "worker")
        dataset = run.dataset(Images()) if run is not None and "dataset" in where else Images()
        loader: Any = DataLoader(
            dataset,
            batch_size=4,
            collate_fn=MixedCollate(*chosen) if in_collate else None,
            num_workers=int(where == "worker"),
        )
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
        if run is not None and "dataset" not in where:
            loader = run.loader(loader)
        if run is not None and "without" not in where:
            run.model(model)
        found = []
        for x, y in loader:
            if not in_collate:
                for mixer in chosen:
                    x, y = mixer(x, y)
            if "without" not in where:
                model(x)
            found.append(x)
        return found

    plain = loop(None)
    with audit.record(tmp_path / "lineage", strict=True) as run:
        recorded = loop(run)
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    ask = Questions(tmp_path / "lineage")
    parents = ask("SELECT batch, position, parent_index, weight FROM parents ORDER BY ALL")
    means = {(n, p): float(x[p].mean()) for n, x in enumerate(recorded) for p in range(4)}
    for (batch, position), mean in means.items():
        own = [(index, weight) for b, p, index, weight in parents if (b, p) == (batch, position)]
        assert sum(weight for _, weight in own) == pytest.approx(1)
        assert sum(index * weight for index, weight in own) == pytest.approx(mean, abs=1e-4)
    assert ask("SELECT count(*) FROM samples WHERE label <> index % 3") == [(0,)]
    if "without" not in where:
        # A mixed input is not a sample: its prediction is kept, and graded against no label.
        assert ask("SELECT count(*), count(label), count(loss), min(call) FROM predictions") == [(12, 0, 0, 1)]
        assert ask("SELECT count(*), min(len(parents)) FROM mixed_predictions") == [(12, 3 if name == "both" else 2)]
        assert ask("SELECT count(*) FROM graded_predictions") == [(0,)]
        assert ask("SELECT accuracy FROM runs") == [(None,)]


def test_the_classes_are_left_as_they_were(tmp_path: Path) -> None:
    before = v2.MixUp.make_params, v2.CutMix.make_params
    with audit.record(tmp_path / "a") as first, audit.record(tmp_path / "b"):
        assert v2.MixUp.make_params is not before[0]
        first.close()
        assert v2.MixUp.make_params is not before[0]
    assert (v2.MixUp.make_params, v2.CutMix.make_params) == before


def test_a_collate_function_leaves_the_classes_as_they_were() -> None:
    before = v2.MixUp.make_params, v2.CutMix.make_params
    with observe_mixes(), observe_mixes():
        assert v2.MixUp.make_params is not before[0]
    assert (v2.MixUp.make_params, v2.CutMix.make_params) == before


def test_parents_given_by_hand(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        for _ in run.loader(DataLoader(Images(), batch_size=6)):
            run.parents([[(0, 0.25), (3, 0.25), (0, 0.5)], [(5, 1.0)]])
    found = Questions(tmp_path / "lineage")(
        "SELECT epoch, batch, position, parent_index, weight FROM parents ORDER BY ALL"
    )
    assert found == [(0, n, *row) for n in range(2) for row in [(0, 0, 0.75), (0, 3, 0.25), (1, 5, 1.0)]]


@given(st.lists(st.floats(0, 1), max_size=4), st.integers(1, 6))
def test_weights_are_what_rolling_gives(shares: list[float], count: int) -> None:
    values = torch.randn(count, dtype=torch.float64)
    mixed = values
    for share in shares:
        mixed = mixed * share + mixed.roll(1, 0) * (1 - share)
    found = mixing.weights([(share, count) for share in shares], count)
    if not shares:
        assert found is None
        return
    assert found is not None
    for pairs, expected in zip(found, mixed, strict=True):
        assert sum(float(values[place]) * share for place, share in pairs) == pytest.approx(float(expected), abs=1e-9)
