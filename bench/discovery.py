"""What it costs to find the stages that a dataset calls: once in a process, and for each item afterwards.

PYTHONPATH=tests/support python bench/discovery.py
"""

from __future__ import annotations

import functools
import statistics
import time
from types import FunctionType
from typing import Any

from dataset_shapes import SHAPES
from torch.utils.data import Dataset, IterableDataset

from audit.recorders.calls.call_stages import CallStages
from audit.recorders.calls.monitor import MONITOR
from audit.recorders.calls.unseen_changes import UnseenChanges
from audit.recorders.stages.discover import find_pipeline
from audit.recorders.visit.visit import Visit

_ITEMS = 200
_ROUNDS = 20


class _BranchingStage(Dataset[Any]):
    """Code with branches that no item takes: what is watched is there, and nothing of it runs."""

    def __init__(self) -> None:
        self.rows = list(range(_ITEMS))

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        if index < 0:
            row = row * 2
        return -row if index > _ITEMS else row


def main() -> None:
    """Print the time of the search for each shape of docs/DATASETS.md, and of observing one item that calls nothing."""
    searches, visits = [], []
    for shape in SHAPES:
        dataset = shape.build()
        if isinstance(dataset, IterableDataset):
            continue
        begun = time.process_time()
        pipeline = find_pipeline(dataset, observe_calls=True)
        stages = CallStages(dataset, pipeline)
        searches.append((time.process_time() - begun) * 1e3)
        visits.append(min(_follow(stages, pipeline) for _ in range(20)) * 1e6)
    print(f"{len(searches)} shapes: search once per process, ms: {_spread(searches)}; target 100")
    print(f"to follow an item of a batch, without its calls, µs: {_spread(visits)}; target 0")
    alone, watched, looked = _watch()
    print(f"to watch for code that few items run, µs: {watched - alone:.3f} an item, {looked:.3f} a batch; target 0.2")


def _watch() -> tuple[float, float, float]:
    """Return the µs that an item takes alone and with its code watched, and what it takes to ask at the end of a batch."""
    dataset = _BranchingStage()
    plain: Any = _BranchingStage.__getitem__
    watched: Any = FunctionType(plain.__code__.replace(), plain.__globals__)
    changes = UnseenChanges(dataset, lambda: [watched.__code__])
    for index in range(_ITEMS):
        make = functools.partial(watched, dataset, index)
        changes.run(make) if not index else make()
        plain(dataset, index)
        changes.take()
    times: dict[Any, list[float]] = {plain: [], watched: [], changes: []}
    for _ in range(_ROUNDS):
        for function in (plain, watched):
            begun = time.process_time()
            for _ in range(50):
                for index in range(_ITEMS):
                    function(dataset, index)
            times[function].append((time.process_time() - begun) / 50 / _ITEMS * 1e6)
        begun = time.process_time()
        for _ in range(1000):
            changes.take()
        times[changes].append((time.process_time() - begun) / 1000 * 1e6)
    MONITOR.release()
    return min(times[plain]), min(times[watched]), min(times[changes])


def _follow(stages: CallStages, pipeline: Any) -> float:
    visits = [Visit(pipeline, "digest") for _ in range(_ITEMS)]
    stages.keep_stand_ins()
    begun = time.process_time()
    for visit in visits:
        stages.follow(visit)
    spent = time.process_time() - begun
    stages.release_stand_ins()
    return spent / _ITEMS


def _spread(measured: list[float]) -> str:
    return f"median {statistics.median(measured):.2f}, most {max(measured):.2f}"


if __name__ == "__main__":
    main()
