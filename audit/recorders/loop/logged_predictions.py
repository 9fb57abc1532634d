"""Rows of predictions that the user hands over: a loop with neither a loader nor a model that could be recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from audit.errors import UsageError
from audit.models.outputs import logits_of
from audit.recorders.items.item_parts import label_number, whole_number
from audit.recorders.loop.numbering import VisitCounter
from audit.recorders.loop.recording_state import RecordingState
from audit.recorders.model.graded_targets import GradedTargets
from audit.recorders.model.predictions import prediction_columns
from audit.recorders.model.ungraded_outputs import describe_label_problem, describe_problems
from audit.recorders.model.unpredicted_batch import BatchRows
from audit.recorders.problems import Problems
from audit.recorders.ranks import rank
from audit.store import wire


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedPredictions:
    """What `run.log` was given, checked."""

    indices: list[int]
    logits: torch.Tensor
    labels: list[Any] | None
    epoch: int | None


def make_logged_rows(
    logged: LoggedPredictions, state: RecordingState, visits: VisitCounter, problems: Problems
) -> BatchRows:
    """Return a row of `samples` and one of `predictions` for each logged sample."""
    count = len(logged.indices)
    epoch = logged.epoch if logged.epoch is not None else state.epoch
    labels: list[int | None] = (
        [None] * count if logged.labels is None else [label_number(label) for label in logged.labels]
    )
    logits = logits_of(logged.logits.detach(), batch=count)
    predictions = prediction_columns(logits, labels, state.run.classes)
    wanted = GradedTargets(labels, None, [None] * count, state.run.classes)
    outside = describe_label_problem(labels, logits.shape[1], "logits")
    for problem in (outside, *describe_problems(predictions, wanted, "logits", is_doubted=False)):
        if problem is not None:
            problems.mark(f"The logits given to run.log: {problem}")
    with state.lock:
        numbers = [visits.next(epoch, index) for index in logged.indices]
        batch, step = state.numbers.take_batch(epoch), state.numbers.take_step()
    shared: dict[str, Any] = {
        "run_id": [state.run.run_id] * count,
        "epoch": [epoch] * count,
        "index": logged.indices,
        "visit": numbers,
        "batch": [batch] * count,
        "position": list(range(count)),
    }
    samples = shared | {
        "source": [f"dataset://{index}" for index in logged.indices],
        "label": predictions["label"],
        "label_name": predictions["label_name"],
        "status": ["ok"] * count,
        "rank": [rank()] * count,
    }
    predicted = predictions | shared | {"step": [step] * count, "call": [0] * count}
    return BatchRows(
        tables={"samples": wire.table_of("samples", samples), "predictions": wire.table_of("predictions", predicted)}
    )


def _index_number(index: Any) -> int | None:
    """Return an index as a whole number: unlike a label, 3.0 can mean nothing else. None where it is not one."""
    value = index.item() if isinstance(index, torch.Tensor) and index.numel() == 1 else index
    return int(value) if isinstance(value, float) and value.is_integer() else label_number(value)


def check_logged(indices: Any, logits: Any, labels: Any, epoch: Any) -> LoggedPredictions:
    """Return what `run.log` was given; raise `UsageError` on the argument that is wrong."""
    numbers = [_index_number(index) for index in _as_list(indices) or [None]]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        raise UsageError(
            f"run.log was given indices={_shorten(indices)}.",
            hint="Give the samples' places in the dataset: whole numbers, at least one.",
        )
    try:
        tensor = torch.as_tensor(logits)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"run.log was given logits={_shorten(logits)}.", hint="Give a tensor, an array or lists of numbers, (N, C)."
        ) from error
    shape, kind = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if not tensor.is_floating_point() or len(shape) not in (1, 2) or shape[0] != len(known):
        raise UsageError(
            f"run.log was given logits of the shape {shape}, {kind}, for {len(known)} indices.",
            hint="Give floating-point numbers: a row of logits, or a single one, for each index.",
        )
    given = None if labels is None else _as_list(labels)
    if labels is not None and (given is None or len(given) != len(known)):
        raise UsageError(
            f"run.log was given labels={_shorten(labels)} for {len(known)} indices.",
            hint="Give a class number, or None, for each index; or no labels at all.",
        )
    number = None if epoch is None else whole_number(epoch, "The epoch given to run.log")
    return LoggedPredictions(indices=known, logits=tensor, labels=given, epoch=number)


def _as_list(values: Any) -> list[Any] | None:
    """Return the values one by one; None where they cannot be listed."""
    try:
        return None if isinstance(values, (str, bytes)) else list(values)
    except TypeError:
        return None


def _shorten(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 100 else f"{text[:100]}…"
