"""Rows of predictions that the user hands over: a loop with neither a loader nor a model that could be recorded."""

from __future__ import annotations

from typing import Any

from audit.recorders.ranks import rank
from audit.store import batch


def logged_tables(
    run_id: str, epoch: int, number: int, step: int, indices: list[int], visits: list[int], predictions: dict[str, Any]
) -> dict[str, Any]:
    """A row of `samples` and one of `predictions` for each."""
    count = len(indices)
    shared: dict[str, Any] = {
        "run_id": [run_id] * count,
        "epoch": [epoch] * count,
        "index": indices,
        "visit": visits,
        "batch": [number] * count,
        "position": list(range(count)),
    }
    samples = shared | {
        "source": [f"dataset://{index}" for index in indices],
        "label": predictions["label"],
        "label_name": predictions["label_name"],
        "status": ["ok"] * count,
        "rank": [rank()] * count,
    }
    return {
        "samples": batch.table_of("samples", samples),
        "predictions": batch.table_of("predictions", predictions | shared | {"step": [step] * count}),
    }
