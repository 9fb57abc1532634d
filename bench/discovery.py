"""What it costs to find the stages that a dataset calls: once in a process, and for each item afterwards.

PYTHONPATH=tests/support python bench/discovery.py
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from dataset_shapes import SHAPES
from torch.utils.data import IterableDataset

from audit.recorders.calls.call_stages import CallStages
from audit.recorders.stages.discover import find_pipeline
from audit.recorders.visit.visit import Visit

_ITEMS = 200


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
