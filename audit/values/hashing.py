"""XXH3-128 over a header and raw bytes, as docs/FORMAT-values.md specifies.

A digest says whether two values are equal bit for bit. It is not a defence against someone who wants a collision.
The recipe has versions; a run says which one its digests follow, so that they can be recomputed for ever.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import xxhash

from audit.records import DIGEST_VERSION

_version: ContextVar[int] = ContextVar("digest_version", default=DIGEST_VERSION)


def version() -> int:
    """Return the version of the recipe that is followed here and now."""
    return _version.get()


@contextmanager
def follow_recipe(number: int) -> Iterator[None]:
    """Let digests in this thread meanwhile follow another version of the recipe."""
    before = _version.set(number)
    try:
        yield
    finally:
        _version.reset(before)


@functools.lru_cache(512)
def header(kind: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return `kind|dtype|d0,d1,...|` in UTF-8."""
    return f"{kind}|{dtype}|{','.join(map(str, shape))}|".encode("utf-8", "surrogatepass")


def digest_parts(kind: str, dtype: str, shape: tuple[int, ...], *parts: Any) -> str:
    """Return the digest of the parts, one after the other, below their header."""
    state = xxhash.xxh3_128(header(kind, dtype, shape))
    for part in parts:
        state.update(part)
    return state.hexdigest()
