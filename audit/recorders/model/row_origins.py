"""Which sample each row of a tensor came from, through the operations that a loop applies to a batch.

One rule for each operation that is followed. A rule answers only where it is certain: operations that mix in values
of another origin (a learned weight, a perturbation, a generated picture) have no rule, or their rule gives None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

#: A sample as (its batch, its place there); None for a row that is not a recorded sample.
Row = tuple[Any, int] | None


@dataclass(frozen=True, slots=True)
class RowOrigins:
    """The samples that a tensor was made of."""

    rows: tuple[Row, ...]
    #: The axis that the samples lie along; None for a tensor that is known only as a whole.
    axis: int | None = 0
    #: What was done to the batch on the way, in order.
    operations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One operation on tensors, done."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    lookup: Callable[[torch.Tensor], RowOrigins | None]

    @property
    def value(self) -> Any:
        """The first argument."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()), None)

    @property
    def origins(self) -> RowOrigins | None:
        """Those of the first argument."""
        return self.lookup(self.value) if isinstance(self.value, torch.Tensor) else None

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument by its place or its name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def sizes(self, name: str) -> tuple[Any, ...]:
        """Arguments that may be given one by one or as one sequence."""
        given = self.args[1:] or (self.kwargs.get(name, ()),)
        return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else tuple(given)


Origins = RowOrigins | None
Rule = Callable[[Call], "Origins | list[Origins]"]


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


# -- each row of the result is made of the same row of the argument ---------------------------------


def keep(call: Call) -> Origins:
    """Take the rows of the first argument as they are."""
    origins, result = call.origins, call.result
    if origins is None or origins.axis is None or not isinstance(result, torch.Tensor):
        return origins
    fits = result.dim() > origins.axis and result.shape[origins.axis] == len(origins.rows)
    return origins if fits else None


def elementwise(call: Call) -> Origins:
    """Follow rows where numbers, or tensors that are the same for each sample, are mixed in; give up on other values."""
    operands = list(_tensors([*call.args, *(value for name, value in call.kwargs.items() if name != "out")]))
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
    if end is None:
        return chosen
    axis = call.result.dim() - end
    return replace(chosen, axis=axis) if axis >= 0 and call.result.shape[axis] == length else None


def _is_the_same_for_all(other: torch.Tensor, end: int | None, length: int) -> bool:
    """Whether a tensor holds no content of one sample: it is a mean, a mask, or one factor for each sample."""
    if other.requires_grad:
        return False
    if other.numel() == 1 or other.dtype == torch.bool:
        return True
    if end is None:
        return False
    own = other.shape[other.dim() - end] if other.dim() >= end else 1
    return own == 1 or (own == length and other.numel() == length)


def _one_of(known: Sequence[RowOrigins]) -> RowOrigins:
    """Return, of samples that were mixed, the one that has its place in the batch, for each row."""
    if all(origins.rows == known[0].rows for origins in known):
        return known[0]
    ordered = next((origins for origins in known if _is_in_order(origins.rows)), known[0])
    return replace(ordered, operations=(*ordered.operations, "mix"))


def _is_in_order(rows: tuple[Row, ...]) -> bool:
    places = [row[1] for row in rows if row is not None]
    owners = {id(row[0]) for row in rows if row is not None}
    return len(owners) == 1 and len(places) == len(rows) and places == sorted(places)


def depthwise(call: Call) -> Origins:
    """Follow a blur: each channel is convolved alone, with a kernel that is not learned."""
    weight, groups = call.argument(1, "weight"), call.argument(6, "groups", 1)
    is_blur = not weight.requires_grad and weight.shape[1] == 1 and groups == weight.shape[0]
    return keep(call) if is_blur else None


def pad(call: Call) -> Origins:
    """Padding of any axis but that of the samples."""
    origins, sizes = call.origins, call.argument(1, "pad")
    if origins is not None and origins.axis is None:
        return _follow_single(call)
    if origins is None or origins.axis is None or origins.axis >= call.value.dim() - len(sizes) // 2:
        return None
    return origins


def overwrite(call: Call) -> Origins:
    """Forget what was in the tensor."""
    return None


def copy_(call: Call) -> Origins:
    """Take the rows of the tensor that is copied from."""
    source = call.argument(1, "other")
    fits = isinstance(source, torch.Tensor) and source.shape == call.value.shape
    return call.lookup(source) if fits else None


def assign(call: Call) -> Origins:
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
    """Whether an index takes in every sample, but not all of it."""
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


# -- the same values in another form -----------------------------------------------------------------


def _follow_single(call: Call) -> Origins:
    """Follow one sample without an axis of samples: it stays one, or becomes a batch of one."""
    origins, value, result = call.origins, call.value, call.result
    if origins is None or len(origins.rows) != 1:
        return None
    is_batch = result.dim() == value.dim() + 1 and result.shape[0] == 1 and result.numel() == value.numel()
    return replace(origins, axis=0 if is_batch else None)


def permute(call: Call) -> Origins:
    """Follow axes that change places: tried on a small tensor in which only the samples' axis is long."""
    origins = call.origins
    if origins is None or origins.axis is None:
        return _follow_single(call)
    probe = torch.empty([2 if axis == origins.axis else 1 for axis in range(call.value.dim())])
    moved = call.function(probe, *call.args[1:], **call.kwargs)
    return replace(origins, axis=list(moved.shape).index(2))


def reshape(call: Call) -> Origins:
    """Follow a new shape: the samples' axis is found again, or it was joined with its neighbours."""
    origins = call.origins
    if origins is None or origins.axis is None:
        return _follow_single(call)
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


def expand(call: Call) -> Origins:
    """Axes are repeated; a single sample may become many rows."""
    origins = call.origins
    if origins is None or origins.axis is None:
        return None
    axis = call.result.dim() - (call.value.dim() - origins.axis)
    times = call.result.shape[axis] // max(len(origins.rows), 1)
    return replace(origins, axis=axis, rows=origins.rows * times)


def repeat_interleave(call: Call) -> Origins:
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


# -- some of the rows, in some order ----------------------------------------------------------------


def flip(call: Call) -> Origins:
    """Reverse the samples if their axis is among those that are flipped."""
    origins = call.origins
    if origins is None or origins.axis is None:
        return _follow_single(call)
    axes = {axis % call.value.dim() for axis in call.sizes("dims")}
    return replace(origins, rows=origins.rows[::-1]) if origins.axis in axes else origins


def roll(call: Call) -> Origins:
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


def index_select(call: Call) -> Origins:
    """Take the rows that are named."""
    origins, axis, index = call.origins, call.argument(1, "dim"), call.argument(2, "index")
    if origins is None or origins.axis is None:
        return None
    if axis % call.value.dim() != origins.axis:
        return origins
    return replace(origins, rows=tuple(origins.rows[n] for n in index.reshape(-1).tolist()))


def split(call: Call) -> list[Origins]:
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


def unbind(call: Call) -> list[Origins]:
    """Take the samples one by one, or the parts of each."""
    origins, axis = call.origins, call.argument(1, "dim", 0)
    if origins is None or origins.axis is None:
        return [None] * len(call.result)
    axis %= call.value.dim()
    if axis == origins.axis:
        return [replace(origins, rows=(row,), axis=None) for row in origins.rows]
    return [replace(origins, axis=origins.axis - (axis < origins.axis))] * len(call.result)


def narrow(call: Call) -> Origins:
    """Take a range of rows, if it is the samples' axis that is narrowed."""
    origins, axis = call.origins, call.argument(1, "dim")
    if origins is None or origins.axis is None:
        return None
    if axis % call.value.dim() != origins.axis:
        return origins
    start = int(call.argument(2, "start")) % max(len(origins.rows), 1)
    return replace(origins, rows=origins.rows[start : start + call.result.shape[origins.axis]])


def select(call: Call) -> Origins:
    """Take one sample, or one part of each."""
    origins, axis, index = call.origins, call.argument(1, "dim"), call.argument(2, "index")
    if origins is None or origins.axis is None:
        return None
    axis %= call.value.dim()
    if axis == origins.axis:
        return replace(origins, rows=(origins.rows[int(index)],), axis=None)
    return replace(origins, axis=origins.axis - (axis < origins.axis))


def getitem(call: Call) -> Origins:
    """Follow `x[...]`: numbers, slices and None anywhere, and at most one list or tensor of rows."""
    origins = call.origins
    if origins is None or origins.axis is None:
        return _follow_single(call)
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


# -- several tensors become one ----------------------------------------------------------------------


def concatenate(call: Call) -> Origins:
    """Put batches one after the other; rows of unknown tensors are not samples. Along another axis all must be the same."""
    parts = list(call.argument(0, "tensors"))
    origins = [call.lookup(part) for part in parts]
    known = next((one for one in origins if one is not None and one.axis is not None), None)
    if known is None or known.axis is None:
        return None
    if call.argument(1, "dim", 0) % call.result.dim() != known.axis:
        return known if all(one is not None and one.rows == known.rows for one in origins) else None
    rows: list[Row] = []
    for part, one in zip(parts, origins, strict=True):
        is_aligned = one is not None and one.axis == known.axis
        rows += one.rows if one is not None and is_aligned else [None] * part.shape[known.axis]
    operations = dict.fromkeys(name for one in origins if one is not None for name in one.operations)
    return RowOrigins(tuple(rows), known.axis, tuple(operations))


def stack(call: Call) -> Origins:
    """Single samples become a batch; batches of the same samples lie side by side."""
    parts = list(call.argument(0, "tensors"))
    origins = [call.lookup(part) for part in parts]
    known = next((one for one in origins if one is not None), None)
    if known is None:
        return None
    axis = call.argument(1, "dim", 0) % call.result.dim()
    if known.axis is None:
        single = [
            one.rows[0] if one is not None and one.axis is None and len(one.rows) == 1 else None for one in origins
        ]
        return RowOrigins(tuple(single), axis, known.operations)
    if any(one is None or one.rows != known.rows or one.axis != known.axis for one in origins):
        return None
    return replace(known, axis=known.axis + (axis <= known.axis))
