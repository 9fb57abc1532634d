"""zstd and the reversible filters that make it effective, and nothing about any kind of value.

pyarrow's codec is imported on first use: it is the one zstd that is always installed. A filter never decides
anything; the caller names it in the encoding, so that a reader can undo it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from audit.values.base import damage_error

LEVEL = 1  # the fastest level that entropy-codes; negative levels leave filtered pixels uncompressed
Bytes = npt.NDArray[np.uint8]


@functools.cache
def _codec() -> Any:
    import pyarrow

    return pyarrow.Codec("zstd", compression_level=LEVEL)


#: zstd makes 128 KiB of equal bytes into four; no value of a stage is larger than 4 GiB.
_MOST_TIMES = 65_536
_LARGEST = 2**32


def compress(data: Any) -> bytes:
    """Return one zstd frame."""
    return bytes(_codec().compress(data, asbytes=True))


def decompress(data: Any, size: int) -> bytes:
    """Return the `size` bytes in a zstd frame."""
    if size == 0:
        return b""
    # A store may come from anybody: memory is not reserved for more than such a frame can hold.
    if not 0 < size <= min(_LARGEST, 4096 + _MOST_TIMES * len(data)):
        raise damage_error(f"{len(data)} bytes cannot hold a value of {size}")
    try:
        out: bytes = _codec().decompress(data, decompressed_size=size, asbytes=True)
    except OSError as error:
        raise damage_error(str(error)) from error
    if len(out) != size:
        raise damage_error(f"{len(out)} bytes where {size} were written")
    return out


def subtract_rows(flat: Bytes, row: int) -> Bytes:
    """Return each byte minus the one `row` bytes before it, modulo 256."""
    out = np.empty_like(flat)
    out[:row] = flat[:row]
    np.subtract(flat[row:], flat[:-row], out=out[row:])
    return out


def add_rows(flat: Bytes, row: int) -> Bytes:
    """Undo `subtract_rows`."""
    count = -(-flat.size // row)
    padded = np.zeros(count * row, np.uint8)
    padded[: flat.size] = flat
    table = padded.reshape(count, row)
    np.add.accumulate(table, axis=0, out=table)
    return padded[: flat.size]


def split_bytes(flat: Bytes, width: int) -> Bytes:
    """Return the first bytes of all elements, then second bytes, and so on."""
    return np.ascontiguousarray(flat.reshape(-1, width).T).reshape(-1)


def join_bytes(flat: Bytes, width: int) -> Bytes:
    """Undo `split_bytes`."""
    return np.ascontiguousarray(flat.reshape(width, -1).T).reshape(-1)


def compress_smallest(plain: Any, size: int, encoding: str, filtered: Any) -> tuple[str, bytes]:
    """Return `encoding` and its frame when that is smaller than the plain bytes, else `raw` and those.

    `plain` may be a function that makes them, since they are seldom wanted.
    """
    if size > 64:
        frame = compress(filtered)
        if len(frame) < size:
            return encoding, frame
    return "raw", bytes(plain() if callable(plain) else plain)
