"""Rules of operations where each row of the result is made of the same row of the argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from audit.recorders.batch_tensors import all_tensors
from audit.recorders.model.operations.single_sample import follow_single
from audit.recorders.model.row_origins import OperationCall, Origins, Row, RowOrigins, mix_rows


def keep(call: OperationCall) -> Origins:
    """Take the rows of the first argument as they are."""
    origins, result = call.origins, call.result
    if origins is None or origins.axis is None or not isinstance(result, torch.Tensor):
        return origins
    fits = result.dim() > origins.axis and result.shape[origins.axis] == len(origins.rows)
    return origins if fits else None


def follow_elementwise(call: OperationCall) -> Origins:
    """Follow rows where numbers, or tensors that are the same for each sample, are mixed in; give up on other values."""
    operands = list(all_tensors([*call.args, *(value for name, value in call.kwargs.items() if name != "out")]))
    known = [(tensor, origins) for tensor in operands if (origins := call.lookup(tensor)) is not None]
    if not known:
        return None
    length = len(known[0][1].rows)
    ends = {tensor.dim() - origins.axis if origins.axis is not None else None for tensor, origins in known}
    if len(ends) > 1 or any(len(origins.rows) != length for _, origins in known):
        return None
    end = ends.pop()
    if any(call.lookup(other) is None and not _is_the_same_for_all(other, end, length) for other in operands):
        return None
    chosen = _one_of([origins for _, origins in known])
    if end is None or chosen is None:
        return chosen
    axis = call.result.dim() - end
    return replace(chosen, axis=axis) if axis >= 0 and call.result.shape[axis] == length else None


def _is_the_same_for_all(other: torch.Tensor, end: int | None, length: int) -> bool:
    """Return whether a tensor holds no content of one sample: it is a mean, a mask, or one factor for each sample."""
    if other.requires_grad:
        return False
    if other.numel() == 1 or other.dtype == torch.bool:
        return True
    if end is None:
        return False
    own = other.shape[other.dim() - end] if other.dim() >= end else 1
    return own == 1 or (own == length and other.numel() == length)


def _one_of(known: Sequence[RowOrigins]) -> Origins:
    """Return samples of one batch that were mixed, each in the place of one of them; None where none is in its place."""
    if all(origins.rows == known[0].rows for origins in known):
        return known[0]
    owners = {id(row[0]) for origins in known for row in origins.rows if row is not None}
    ordered = next((origins for origins in known if _is_in_order(origins.rows)), None)
    if ordered is None or len(owners) > 1:
        return None
    rows = [mix_rows(own, list(others)) for own, *others in zip(ordered.rows, *(o.rows for o in known), strict=True)]
    return replace(ordered, rows=tuple(rows), operations=(*ordered.operations, "mix"))


def where(call: OperationCall) -> Origins:
    """Follow `where(condition, a, b)`. If the condition takes whole samples, each row is that of its own tensor."""
    condition, first, second = _where_arguments(call)
    known = [call.lookup(one) if isinstance(one, torch.Tensor) else None for one in (first, second)]
    if known[0] is None or known[1] is None or known[0].rows == known[1].rows or known[0].axis is None:
        return follow_elementwise(call)
    axis = known[0].axis
    spread = condition.broadcast_to(call.result.shape).movedim(axis, 0).reshape(call.result.shape[axis], -1)
    takes_whole = bool((spread == spread[:, :1]).all()) and spread.shape[1] > 0
    if not takes_whole or known[1].axis != axis or not len(known[0].rows) == len(known[1].rows) == len(spread):
        return follow_elementwise(call)
    pairs = zip(spread[:, 0].tolist(), known[0].rows, known[1].rows, strict=True)
    operations = dict.fromkeys((*known[0].operations, *known[1].operations))
    return RowOrigins(tuple(mine if chosen else other for chosen, mine, other in pairs), axis, tuple(operations))


def _where_arguments(call: OperationCall) -> tuple[Any, Any, Any]:
    """Return condition, value if true, value if false, for `torch.where(c, a, b)` and `a.where(c, b)`."""
    names = call.kwargs
    if call.function is torch.Tensor.where:
        return call.argument(1, "condition"), call.value, call.argument(2, "other")
    return call.argument(0, "condition"), call.argument(1, "input", names.get("self")), call.argument(2, "other")


def _is_in_order(rows: tuple[Row, ...]) -> bool:
    places = [row[1] for row in rows if row is not None]
    owners = {id(row[0]) for row in rows if row is not None}
    return len(owners) == 1 and len(places) == len(rows) and places == sorted(places)


def depthwise(call: OperationCall) -> Origins:
    """Follow a blur: each channel is convolved alone, with a kernel that is not learned."""
    weight, groups = call.argument(1, "weight"), call.argument(6, "groups", 1)
    is_blur = not weight.requires_grad and weight.shape[1] == 1 and groups == weight.shape[0]
    return keep(call) if is_blur else None


def pad(call: OperationCall) -> Origins:
    """Follow a padding of any axis but that of the samples."""
    origins, sizes = call.origins, call.argument(1, "pad")
    if origins is not None and origins.axis is None:
        return follow_single(call)
    if origins is None or origins.axis is None or origins.axis >= call.value.dim() - len(sizes) // 2:
        return None
    return origins


def overwrite(call: OperationCall) -> Origins:
    """Forget what was in the tensor."""
    return None


def expose(call: OperationCall) -> Origins:
    """Hand out the memory of a tensor; see BatchTracker."""
    return None


def copy_(call: OperationCall) -> Origins:
    """Take the rows of the tensor that is copied from."""
    source = call.argument(1, "other")
    fits = isinstance(source, torch.Tensor) and source.shape == call.value.shape
    return call.lookup(source) if fits else None


def assign(call: OperationCall) -> Origins:
    """Follow a part of each sample being replaced: by a number, by what is the same for all, or by a part of another."""
    origins, (index, value) = call.origins, call.args[1:3]
    if origins is None or origins.axis is None or not _is_part_of_each(index, origins.axis, call.value.dim()):
        return None
    if not isinstance(value, torch.Tensor):
        return origins
    other = call.lookup(value)
    if other is not None:
        return _one_of([origins, other]) if len(other.rows) == len(origins.rows) else None
    return origins if _is_the_same_for_all(value, call.value.dim() - origins.axis, len(origins.rows)) else None


def _is_part_of_each(index: Any, axis: int, dimensions: int) -> bool:
    """Return whether an index takes in every sample, but not all of it."""
    if isinstance(index, torch.Tensor):
        return index.dtype == torch.bool and index.dim() > axis + 1
    parts = index if isinstance(index, tuple) else (index,)
    if any(
        part is None or (isinstance(part, (list, torch.Tensor)) and axis == 0 and part is parts[0]) for part in parts
    ):
        return False
    dots = next((place for place, part in enumerate(parts) if part is Ellipsis), None)
    if dots is not None:
        parts = (*parts[:dots], *[slice(None)] * (dimensions - len(parts) + 1), *parts[dots + 1 :])
    own = parts[axis] if axis < len(parts) else slice(None)
    others = [part for place, part in enumerate(parts) if place != axis]
    return _is_all(own) and any(not _is_all(part) for part in others)


def _is_all(part: Any) -> bool:
    return isinstance(part, slice) and part == slice(None)
