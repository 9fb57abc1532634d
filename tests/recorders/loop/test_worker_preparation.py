"""What is looked for before workers are forked is still true in them: of what `worker_init_fn` and the user's loop change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

import audit

pytestmark = pytest.mark.workers


class _Noise:
    """Holds a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def draw(self) -> float:
        return float(self.generator.random())


class _Quiet:
    """Takes the place of `_Noise`, and draws nothing."""

    def draw(self) -> float:
        return 0.0


class _Pictures(Dataset[Any]):
    def __init__(self) -> None:
        self.noise: Any = _Quiet()
        self.change: Callable[[torch.Tensor], torch.Tensor] = _keep

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.change(torch.full((4,), float(index))) + self.noise.draw(), index % 2


def _keep(value: torch.Tensor) -> torch.Tensor:
    return value * 1


def _double(value: torch.Tensor) -> torch.Tensor:
    return value * 2


def _change(dataset: Any, seed: int) -> None:
    dataset.noise = _Noise(seed)
    dataset.change = _double


def _change_in_worker(number: int) -> None:
    info = get_worker_info()
    assert info is not None
    _change(info.dataset, number)


def _facts(store: Path, epoch: int) -> tuple[list[int], list[str]]:
    """Return the samples that drew from the dataset's own generator in an epoch, and the names of the stages that they went through."""
    with audit.open(store) as opened:
        drawn = f"SELECT index FROM rng WHERE epoch = {epoch} AND generator LIKE '%noise.generator' ORDER BY 1"
        stages = f"SELECT DISTINCT qualname FROM stages JOIN stage_outputs USING (run_id, stage) WHERE epoch = {epoch}"
        return [index for (index,) in opened.sql(drawn).fetchall()], [name for (name,) in opened.sql(stages).fetchall()]


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
def test_workers_see_what_their_init_function_changed(tmp_path: Path) -> None:
    loader = DataLoader(_Pictures(), batch_size=2, num_workers=2, worker_init_fn=_change_in_worker)
    plain = [x.tolist() for x, _ in loader]
    with audit.record(tmp_path / "lineage") as run:
        recorded = [x.tolist() for x, _ in run.loader(loader)]
    assert recorded == plain
    drawn, stages = _facts(tmp_path / "lineage", 0)
    assert drawn == list(range(8))
    assert any("_double" in name for name in stages)
    assert not any("_keep" in name for name in stages)


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
def test_workers_of_the_next_epoch_see_what_the_loop_changed(tmp_path: Path) -> None:
    dataset = _Pictures()
    with audit.record(tmp_path / "lineage") as run:
        loader = run.loader(DataLoader(dataset, batch_size=2, num_workers=2))
        for epoch in run.epochs(2):
            if epoch:
                _change(dataset, 5)
            assert len(list(loader)) == 4
    first, second = (_facts(tmp_path / "lineage", epoch) for epoch in range(2))
    assert first[0] == []
    assert any("_keep" in name for name in first[1])
    assert second[0] == list(range(8))
    assert any("_double" in name for name in second[1])
    assert not any("_keep" in name for name in second[1])
