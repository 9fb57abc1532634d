"""Rules of operations that give the same values another form."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from audit.recorders.model.operations.single_sample import follow_single
from audit.recorders.model.operations.value_rules import keep
from audit.recorders.model.row_origins import OperationCall, Origins


def permute(call: OperationCall) -> Origins:
    """Follow axes that change places: tried on a small tensor in which only the samples' axis is long."""
    origins = call.origins
    if origins is None or origins.axis is None:
        return follow_single(call)
    probe = torch.empty([2 if axis == origins.axis else 1 for axis in range(call.value.dim())])
    moved = call.function(probe, *call.args[1:], **call.kwargs)
    return replace(origins, axis=list(moved.shape).index(2))


def reshape(call: OperationCall) -> Origins:
    """Follow a new shape: the samples' axis is found again, or it was joined with its neighbours."""
    origins = call.origins
    if origins is None or origins.axis is None:
        return follow_single(call)
    old, new = call.value.shape, call.result.shape
    before, count, after = math.prod(old[: origins.axis]), len(origins.rows), math.prod(old[origins.axis + 1 :])
    for axis, size in enumerate(new):
        outer = math.prod(new[:axis])
        if outer == before and size == count:
            return replace(origins, axis=axis)
    for axis, size in enumerate(new):
        outer = math.prod(new[:axis])
        if outer and before % outer == 0 and size and size % (before // outer * count) == 0:
            times, each = before // outer, size // (before // outer * count)
            if each <= after and after % max(each, 1) == 0:
                rows = [row for row in origins.rows for _ in range(each)]
                return replace(origins, rows=tuple(rows * times), axis=axis)
    return None


def repeat(call: OperationCall) -> Origins:
    """Repeat a tensor along its axes, so that a sample becomes many rows; axes that are added come first."""
    origins = call.origins
    if origins is None or origins.axis is None or not origins.rows:
        return None
    axis = call.result.dim() - (call.value.dim() - origins.axis)
    times = call.result.shape[axis] // len(origins.rows)
    return replace(origins, axis=axis, rows=origins.rows * times)


def repeat_interleave(call: OperationCall) -> Origins:
    """Repeat each row several times."""
    origins, repeats, axis = call.origins, call.argument(1, "repeats"), call.argument(2, "dim")
    if origins is None or origins.axis is None or axis is None:
        return None
    if axis % call.value.dim() != origins.axis:
        return keep(call)
    each = repeats.tolist() if isinstance(repeats, torch.Tensor) else [repeats] * len(origins.rows)
    each = each * len(origins.rows) if len(each) == 1 else each
    rows = [row for row, times in zip(origins.rows, each, strict=True) for _ in range(times)]
    return replace(origins, rows=tuple(rows))
