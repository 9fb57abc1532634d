"""Datasets that keep what they made: a recording and a replay may run a sample's stages at different times."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import audit
from audit.lineage.replay.kept_values import align


def halve(value: torch.Tensor) -> torch.Tensor:
    return value / 2


class Keeps(Dataset):  # type: ignore[type-arg]
    """Keeps finished items, or what its first stage made."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.rows = torch.arange(24.0).reshape(4, 6)
        self.kept: dict[int, Any] = {}
        self.load = functools.lru_cache(self.make)

    def make(self, index: int) -> torch.Tensor:
        return halve(self.rows[index])

    def double(self, value: torch.Tensor) -> torch.Tensor:
        return value * 2 + 1

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if self.how == "lru_cache":
            return self.double(self.load(index)), index % 2
        if index not in self.kept:
            self.kept[index] = self.double(halve(self.rows[index]))
        return self.kept[index], index % 2


@pytest.mark.workers
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("how", ["lru_cache", "items"])
def test_replay_of_a_dataset_that_keeps_values(how: str, workers: int, tmp_path: Path) -> None:
    """Workers end with each epoch, and what they kept with them; a replay keeps it over all epochs."""
    with audit.record(tmp_path, strict=True) as run:
        loader = run.loader(DataLoader(Keeps(how), num_workers=workers))
        for _ in range(2):
            list(loader)
    assert run.run.unrecorded == []
    with audit.open(tmp_path) as store:
        first = store.sql(
            "SELECT list(name ORDER BY stage) FROM stage_outputs WHERE epoch = 0 GROUP BY index"
        ).fetchall()
        assert first == [(["load", "halve", "double"],)] * 4
        whole = store.replay(dataset=Keeps(how), workers=0)
        assert (whole.identical, whole.checked) == (8, 8)
        assert bool(whole.not_compared) is bool(workers)
        later = store.replay(dataset=Keeps(how), workers=0, epoch=1)
        assert (later.identical, later.checked) == (4, 4)
        changed = Keeps(how)
        changed.rows = changed.rows + 1
        assert store.replay(dataset=changed, workers=0).identical == 0


def test_only_a_kept_value_is_left_out() -> None:
    whole = {"0": "a", "1": "b", "2": "c"}
    assert align(whole, {"0": "b", "2": "c"}) == ({"1": "b", "2": "c"}, {"1": "b", "2": "c"})
    assert align({"0": "b", "2": "c"}, whole) == ({"0": "b", "2": "c"}, {"0": "b", "2": "c"})
    assert align(whole, {"0": "c"}) == ({"2": "c"}, {"2": "c"})
    for other in ({"0": "x", "2": "c"}, {"0": "b", "1": "b", "2": "c"}, {"0": None}, whole):
        assert align(whole, other) == (whole, other)
