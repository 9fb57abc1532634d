"""Rows of predictions that the user hands over: a loop with neither a loader nor a model that could be recorded."""

from __future__ import annotations

from typing import Any

import torch

from audit.errors import UsageError
from audit.recorders.loop.ranks import rank
from audit.recorders.visit.items import label_number, whole_number
from audit.store import wire as batch


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
        "predictions": batch.table_of(
            "predictions", predictions | shared | {"step": [step] * count, "call": [0] * count}
        ),
    }


def _index_number(index: Any) -> int | None:
    """Return an index as a whole number: unlike a label, 3.0 can mean nothing else. None where it is not one."""
    value = index.item() if isinstance(index, torch.Tensor) and index.numel() == 1 else index
    return int(value) if isinstance(value, float) and value.is_integer() else label_number(value)


def checked(
    indices: Any, logits: Any, labels: Any, epoch: Any
) -> tuple[list[int], torch.Tensor, list[Any] | None, int | None]:
    """What `run.log` was given, as it is wanted; an error that says which of it is wrong."""
    numbers = [_index_number(index) for index in _listed(indices) or [None]]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        raise UsageError(
            f"run.log was given indices={_shown(indices)}.",
            hint="Give the samples' places in the dataset: whole numbers, at least one.",
        )
    try:
        tensor = torch.as_tensor(logits)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"run.log was given logits={_shown(logits)}.", hint="Give a tensor, an array or lists of numbers, (N, C)."
        ) from error
    shape, kind = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if not tensor.is_floating_point() or len(shape) not in (1, 2) or shape[0] != len(known):
        raise UsageError(
            f"run.log was given logits of the shape {shape}, {kind}, for {len(known)} indices.",
            hint="Give floating-point numbers: a row of logits, or a single one, for each index.",
        )
    given = None if labels is None else _listed(labels)
    if labels is not None and (given is None or len(given) != len(known)):
        raise UsageError(
            f"run.log was given labels={_shown(labels)} for {len(known)} indices.",
            hint="Give a class number, or None, for each index; or no labels at all.",
        )
    return known, tensor, given, None if epoch is None else whole_number(epoch, "The epoch given to run.log")


def _listed(values: Any) -> list[Any] | None:
    """The values one by one; None where they are none."""
    try:
        return None if isinstance(values, (str, bytes)) else list(values)
    except TypeError:
        return None


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 100 else f"{text[:100]}…"
