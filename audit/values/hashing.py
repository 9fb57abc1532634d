"""XXH3-128 over a header and raw bytes, as docs/FORMAT.md specifies.

A digest says whether two values are equal bit for bit. It is not a defence against someone who wants a collision.
"""

from __future__ import annotations

import functools
from typing import Any

import xxhash


@functools.lru_cache(512)
def header(kind: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """`kind|dtype|d0,d1,...|` in UTF-8."""
    return f"{kind}|{dtype}|{','.join(map(str, shape))}|".encode("utf-8", "surrogatepass")


def of(kind: str, dtype: str, shape: tuple[int, ...], *parts: Any) -> str:
    """The digest of the parts, one after the other, below their header."""
    state = xxhash.xxh3_128(header(kind, dtype, shape))
    for part in parts:
        state.update(part)
    return state.hexdigest()
