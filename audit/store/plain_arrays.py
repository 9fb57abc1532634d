"""Lists as Arrow arrays, and Arrow arrays of numbers as those of numpy, without `pa.array`: that loads pandas where it is installed, which takes longer than a first answer.

For the few types of the `runs` table, which every process makes that asks a store something.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

_NUMBERS = {pa.int64(): np.int64, pa.float64(): np.float64}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def array_of(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return what `pa.array(values, kind)` returns, for texts, 64-bit numbers, times, lists and maps of texts."""
    length, valid = len(values), _validity(values)
    if kind in _NUMBERS:
        numbers = np.array([0 if value is None else value for value in values], _NUMBERS[kind])
        return pa.Array.from_buffers(kind, length, [valid, pa.py_buffer(numbers)])
    if pa.types.is_timestamp(kind):
        times = [0 if value is None else _microseconds(value) for value in values]
        return pa.Array.from_buffers(kind, length, [valid, pa.py_buffer(np.array(times, np.int64))])
    if pa.types.is_string(kind):
        texts = [b"" if value is None else value.encode() for value in values]
        return pa.Array.from_buffers(kind, length, [valid, _offsets(texts), pa.py_buffer(b"".join(texts))])
    within = [item for value in values if value is not None for item in value]
    ends = _offsets([() if value is None else value for value in values])
    if pa.types.is_map(kind):
        keys = array_of([key for key, _ in within], kind.key_type)
        items = array_of([item for _, item in within], kind.item_type)
        entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, length, [valid, ends], children=[entries])
    return pa.Array.from_buffers(kind, length, [valid, ends], children=[array_of(within, kind.value_type)])


def numbers_of(column: pa.Array | pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Return the numbers of a column without nulls, without `to_numpy`, which loads pandas too."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    kind = column.type.to_pandas_dtype()
    return np.concatenate([np.empty(0, kind), *(np.from_dlpack(chunk) for chunk in chunks if len(chunk))])


def _microseconds(time: datetime) -> int:
    """Return the time since 1970; one without a zone is in UTC, as Arrow takes it."""
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    present = np.array([value is not None for value in values], bool)
    return None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))


def _offsets(parts: Sequence[Any]) -> pa.Buffer:
    ends = np.cumsum([0, *map(len, parts)])
    return pa.py_buffer(ends.astype(np.int32))
