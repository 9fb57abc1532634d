"""Lists as Arrow arrays: what `pa.array` makes, by the compiled loops where they know the type.

A batch has some hundred columns of few values, and `pa.array` looks at each value in a general way.
"""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa

from audit.values import native as loops

_CODES = {
    pa.int32().id: "i",
    pa.int64().id: "q",
    pa.float32().id: "f",
    pa.float64().id: "d",
    pa.bool_().id: "?",
    pa.string().id: "s",
    pa.binary().id: "z",
}
_LIST, _WHOLE = pa.list_(pa.int64()).id, pa.int64()


def array_of(values: Any, kind: pa.DataType, start: int = 0, step: int = 1) -> pa.Array:
    """Return `pa.array(values[start::step], kind)`."""
    if type(values) is list and hasattr(loops.native, "column"):
        code = _CODES.get(kind.id) or ("l" if kind.id == _LIST and kind.value_type == _WHOLE else None)
        found = loops.native.column(values, start, step, code) if code else None  # type: ignore[union-attr]
        if found is not None:
            return _from_buffers(kind, len(range(start, len(values), step)), *found)
    return pa.array(values if step == 1 and not start else values[start::step], kind)


def _from_buffers(
    kind: pa.DataType, length: int, nulls: int, valid: bytes | None, first: bytes | None, second: bytes | None
) -> pa.Array:
    if first is None:
        return null_column(kind, length)
    buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(first)]
    if second is None:
        return pa.Array.from_buffers(kind, length, buffers, nulls)
    if kind.id != _LIST:
        return pa.Array.from_buffers(kind, length, [*buffers, pa.py_buffer(second)], nulls)
    within = pa.Array.from_buffers(_WHOLE, len(second) // 8, [None, pa.py_buffer(second)], 0)
    return pa.Array.from_buffers(kind, length, buffers, nulls, children=[within])


@functools.lru_cache(256)
def null_column(kind: pa.DataType, length: int) -> pa.Array:
    """Return a column of NULL."""
    return pa.nulls(length, kind)


@functools.lru_cache(256)
def constant_column(value: Any, kind: pa.DataType, length: int) -> pa.Array:
    """Return a column that holds one value in all its rows. Batches of one size share it."""
    return array_of([value] * length, kind)
