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

#: Versions of the recipe that changed digests of values of kinds that there were before, and how such values were digested
#: until then, as Markdown for docs/FORMAT-values.md. The version that a new kind came with is `since` of its class.
RECIPE_CHANGES = {
    2: "what a tv_tensor means was not part of its digest; sparse, quantised and nested tensors were `other`; what cannot be "
    "pickled, and functions, had the digest of their `repr` or pickle",
    3: "what stands after `\\|` in the table below was left out, except for tv_tensors of torchvision's own classes; tensors "
    "without content (meta tensors, parameters of lazy modules) had a digest",
}

_newest_version = max(RECIPE_CHANGES)
_followed_version: ContextVar[int] = ContextVar("digest_version")


def set_newest_version(number: int) -> None:
    """Set the version that is followed where `follow_recipe` does not name another."""
    global _newest_version
    _newest_version = number


def version() -> int:
    """Return the version of the recipe that is followed here and now."""
    return _followed_version.get(_newest_version)


@contextmanager
def follow_recipe(number: int) -> Iterator[None]:
    """Let digests in this thread meanwhile follow another version of the recipe."""
    before = _followed_version.set(number)
    try:
        yield
    finally:
        _followed_version.reset(before)


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
