"""Rules of operations that take some of the rows, in some order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from audit.recorders.model.operations.single_sample import follow_single
from audit.recorders.model.row_origins import OperationCall, Origins, Row


def flip(call: OperationCall) -> Origins:
    """Reverse the samples if their axis is among those that are flipped."""
    origins = call.origins
    if origins is None or origins.axis is None:
        return follow_single(call)
    axes = {axis % call.value.dim() for axis in call.sizes("dims")}
    return replace(origins, rows=origins.rows[::-1]) if origins.axis in axes else origins


def rotate(call: OperationCall) -> Origins:
    """Turn each sample, unless the samples' axis is one of the two that are turned."""
    origins, axes = call.origins, call.argument(2, "dims", (0, 1))
    if origins is None or origins.axis is None:
        return follow_single(call)
    return None if origins.axis in {axis % call.value.dim() for axis in axes} else origins


def roll(call: OperationCall) -> Origins:
    """Shift the samples if their axis is among those that are rolled."""
    origins, shifts, axes = call.origins, call.argument(1, "shifts"), call.argument(2, "dims")
    if origins is None or origins.axis is None or axes is None or axes == ():
        return None
    pairs = zip(_as_tuple(shifts), _as_tuple(axes), strict=True)
    rows = origins.rows
    for shift, axis in pairs:
        if axis % call.value.dim() == origins.axis and rows:
            rows = rows[-shift % len(rows) :] + rows[: -shift % len(rows)]
    return replace(origins, rows=rows)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def index_select(call: OperationCall) -> Origins:
    """Take the rows that are named."""
    origins, axis, index = call.origins, call.argument(1, "dim"), call.argument(2, "index")
    if origins is None or origins.axis is None:
        return None
    if axis % call.value.dim() != origins.axis:
        return origins
    return replace(origins, rows=tuple(origins.rows[n] for n in index.reshape(-1).tolist()))


def split(call: OperationCall) -> list[Origins]:
    """Cut the batch into parts, one after the other."""
    origins, axis = call.origins, call.argument(2, "dim", 0)
    if origins is None or origins.axis is None:
        return [None] * len(call.result)
    if axis % call.value.dim() != origins.axis:
        return [origins] * len(call.result)
    parts: list[Origins] = []
    at = 0
    for part in call.result:
        size = part.shape[origins.axis]
        parts.append(replace(origins, rows=origins.rows[at : at + size]))
        at += size
    return parts


def unbind(call: OperationCall) -> list[Origins]:
    """Take the samples one by one, or the parts of each."""
    origins, axis = call.origins, call.argument(1, "dim", 0)
    if origins is None or origins.axis is None:
        return [None] * len(call.result)
    axis %= call.value.dim()
    if axis == origins.axis:
        return [replace(origins, rows=(row,), axis=None) for row in origins.rows]
    return [replace(origins, axis=origins.axis - (axis < origins.axis))] * len(call.result)


def narrow(call: OperationCall) -> Origins:
    """Take a range of rows, if it is the samples' axis that is narrowed."""
    origins, axis = call.origins, call.argument(1, "dim")
    if origins is None or origins.axis is None:
        return None
    if axis % call.value.dim() != origins.axis:
        return origins
    start = int(call.argument(2, "start")) % max(len(origins.rows), 1)
    return replace(origins, rows=origins.rows[start : start + call.result.shape[origins.axis]])


def select(call: OperationCall) -> Origins:
    """Take one sample, or one part of each."""
    origins, axis, index = call.origins, call.argument(1, "dim"), call.argument(2, "index")
    if origins is None or origins.axis is None:
        return None
    axis %= call.value.dim()
    if axis == origins.axis:
        return replace(origins, rows=(origins.rows[int(index)],), axis=None)
    return replace(origins, axis=origins.axis - (axis < origins.axis))


def getitem(call: OperationCall) -> Origins:
    """Follow `x[...]`: numbers, slices and None anywhere, and at most one list or tensor of rows."""
    origins = call.origins
    if origins is None or origins.axis is None:
        return follow_single(call)
    index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    taken = sum(not (part is None or part is Ellipsis) for part in index)
    if sum(_is_advanced(part) for part in index) > 1:
        return None
    at, new, rows, axis = 0, 0, origins.rows, None
    for part in (*index, *(() if Ellipsis in _kinds(index) else (Ellipsis,))):
        if part is None:
            new += 1
            continue
        if part is Ellipsis:
            skipped = call.value.dim() - taken
            if at <= origins.axis < at + skipped:
                axis = new + origins.axis - at
            at, new = at + skipped, new + skipped
            continue
        if at == origins.axis:
            chosen = _choose_rows(rows, part)
            if chosen is None:
                return None
            rows = chosen
            axis = None if _is_number(part) else new
            if _is_number(part):
                return replace(origins, rows=rows, axis=None)
        at, new = at + 1, new + (not _is_number(part))
    return replace(origins, rows=rows, axis=axis)


def _kinds(index: tuple[Any, ...]) -> list[Any]:
    return [part if part is Ellipsis else None for part in index]


def _is_number(part: Any) -> bool:
    if isinstance(part, torch.Tensor):
        return part.dim() == 0 and part.dtype != torch.bool
    return not isinstance(part, (slice, list, range, bool)) and getattr(part, "ndim", 0) == 0


def _is_advanced(part: Any) -> bool:
    return part is not None and part is not Ellipsis and not isinstance(part, slice) and not _is_number(part)


def _choose_rows(rows: tuple[Row, ...], part: Any) -> tuple[Row, ...] | None:
    if _is_number(part):
        return (rows[int(part)],)
    if isinstance(part, slice):
        return rows[part]
    chosen = torch.as_tensor(part)
    if chosen.dim() != 1:
        return None
    numbers = torch.arange(len(rows))[chosen.to("cpu")]
    return tuple(rows[n] for n in numbers.tolist())
