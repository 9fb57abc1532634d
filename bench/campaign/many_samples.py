"""A long run with two workers: memory, descriptors, threads and shared memory are watched, and must not grow with the samples.

What is watched is compared between a tenth of the run and its end, in the main process and in its workers.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import torch
from torch.utils.data import DataLoader, Dataset

import audit
from bench.campaign.stores import make_fresh
from bench.campaign.trial import Trial

GOAL = 100_000
COUNTS = "samples through two workers"
_BATCH = 64
#: How much a run may grow after its first part, in bytes.
_ROOM = 50 * 2**20


class Numbers(Dataset[torch.Tensor]):
    """Small tensors, as many as are asked for."""

    def __len__(self) -> int:
        return GOAL

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


def run(trial: Trial) -> None:
    place, me = make_fresh(trial.folder / "s"), psutil.Process()
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    with audit.record(place, name="many", capture="digest") as recording:
        for number, batch in enumerate(recording.loader(DataLoader(Numbers(), batch_size=_BATCH, num_workers=2))):
            trial.tried += len(batch)
            if number == GOAL // 10 // _BATCH:
                before = _measure_use(me)
            if not trial.more():
                break
            after = _measure_use(me) if number % 100 == 0 else after
    if not before:
        trial.counts["too slow to tell"] = 1
        return
    for what, value in after.items():
        grown = value - before[what]
        is_memory = what.startswith("bytes")
        trial.counts[f"{what.replace('bytes', 'MB') if is_memory else what} grew by"] = (
            grown // 2**20 if is_memory else grown
        )
        if grown > (_ROOM if is_memory else 8):
            trial.fail(f"{what} grew from {before[what]:,} to {value:,}")


def _measure_use(me: psutil.Process) -> dict[str, int]:
    return {
        "bytes of memory": me.memory_info().rss,
        "bytes of the workers' memory": sum(worker.memory_info().rss for worker in me.children()),
        "descriptors": me.num_fds(),
        "threads": me.num_threads(),
        "files in shared memory": sum(1 for name in os.listdir("/dev/shm") if _is_ours(Path("/dev/shm") / name)),
    }


def _is_ours(path: Path) -> bool:
    return path.name.startswith(f"torch_{os.getpid()}_")
