"""A long run with two workers: memory, descriptors, threads and shared memory are watched, and must not grow with the samples."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import torch
from torch.utils.data import DataLoader, Dataset

import audit
from bench.campaign.stores import fresh
from bench.campaign.trial import Trial

GOAL = 100_000
COUNTS = "samples through two workers"
_BATCH = 64
#: How much a run may grow after its first part, in bytes.
_ROOM = 64 * 2**20


class Numbers(Dataset[torch.Tensor]):
    """Small tensors, as many as are asked for."""

    def __len__(self) -> int:
        return GOAL

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


def run(trial: Trial) -> None:
    place, me = fresh(trial.folder / "s"), psutil.Process()
    before: dict[str, int] = {}
    with audit.record(place, name="many", capture="digest") as recording:
        for number, batch in enumerate(recording.loader(DataLoader(Numbers(), batch_size=_BATCH, num_workers=2))):
            trial.tried += len(batch)
            if number == 150:
                before = _used(me)
            if not trial.more():
                break
        after = _used(me)
    if not before:
        trial.counts["too slow to tell"] = 1
        return
    for what, value in after.items():
        grown = value - before[what]
        trial.counts[f"{what} grew by"] = max(0, grown)
        if grown > (_ROOM if what == "bytes of memory" else 8):
            trial.fail(f"{what} grew from {before[what]:,} to {value:,}")


def _used(me: psutil.Process) -> dict[str, int]:
    return {
        "bytes of memory": me.memory_info().rss,
        "descriptors": me.num_fds(),
        "threads": me.num_threads(),
        "files in shared memory": sum(1 for name in os.listdir("/dev/shm") if _is_ours(Path("/dev/shm") / name)),
    }


def _is_ours(path: Path) -> bool:
    return path.name.startswith(f"torch_{os.getpid()}_")
