"""Perceptual hashes: 64 bits of a picture's brightness gradients, and pairs of them that differ in few bits.

Small numpy instead of a package: a million hashes are one array here, where a package has an object for each. The
search is not quadratic: hashes that differ in at most d bits agree in one of d + 1 bands, so only those that share a
band are compared; a crowded band is split again by the same rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BITS = 64
#: Groups up to this size are compared together, one offset after the other.
_FEW = 64
#: A band with more hashes than this is split again rather than compared pair by pair.
_CROWD = 2_000
#: How many hashes of a crowded band are compared with all that follow, at a time.
_CHUNK_SIZE = 16


def dhash(image: Any) -> int:
    """Return 64 bits: whether each pixel of a 9×8 thumbnail is darker than its right neighbour."""
    from PIL import Image

    small = np.asarray(image.convert("L").resize((9, 8), Image.Resampling.LANCZOS), dtype=np.int16)
    return int.from_bytes(np.packbits(small[:, 1:] > small[:, :-1]).tobytes(), "big")


def near_pairs(hashes: Array, distance: int) -> Array:
    """Return every pair (i < j) of positions whose hashes differ in at most `distance` bits, sorted; equal hashes too.

    Each of several equal hashes is paired only with the first: n equal pictures give n - 1 pairs.
    """
    hashes = hashes.astype(np.uint64)
    unique, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    same = np.flatnonzero(first[inverse] != np.arange(len(hashes)))
    found = [np.stack([first[inverse[same]], same], axis=1)] if len(same) else []
    if distance > 0 and len(unique) > 1:
        for low, high in _close_pairs(unique, np.arange(len(unique)), distance, 0, BITS):
            a, b = first[low], first[high]
            found.append(np.stack([np.minimum(a, b), np.maximum(a, b)], axis=1))
    if not found:
        return np.empty((0, 2), dtype=np.int64)
    return np.unique(np.concatenate(found), axis=0)


def _close_pairs(hashes: Array, positions: Array, distance: int, start: int, end: int) -> Iterator[tuple[Array, Array]]:
    """Yield the pairs among `positions` that agree in a band of the bits from `start` to `end`."""
    bands = distance + 1
    if len(positions) <= _CROWD // 4 or end - start < 2 * bands:
        yield from _compare(hashes, positions, distance)
        return
    edges = np.linspace(start, end, bands + 1).astype(int)
    for low, high in pairwise(edges):
        mask = np.uint64((1 << int(high - low)) - 1)
        keys = (hashes[positions] >> np.uint64(low)) & mask
        order = np.argsort(keys, kind="stable")
        cuts = np.flatnonzero(np.diff(keys[order])) + 1
        sizes = np.diff(np.concatenate([[0], cuts, [len(order)]]))
        starts = np.concatenate([[0], cuts])
        ordered = positions[order]
        # Most bands hold two or three hashes; those are compared together, offset by offset.
        yield from _small_groups(hashes, ordered, starts, sizes, distance)
        for at in np.flatnonzero(sizes > _FEW):
            group = ordered[starts[at] : starts[at] + sizes[at]]
            if len(group) <= _CROWD:
                yield from _compare(hashes, group, distance)
            elif low - start >= end - high:
                yield from _close_pairs(hashes, group, distance, start, int(low))
            else:
                yield from _close_pairs(hashes, group, distance, int(high), end)


def _small_groups(
    hashes: Array, ordered: Array, starts: Array, sizes: Array, distance: int
) -> Iterator[tuple[Array, Array]]:
    small = (sizes > 1) & (sizes <= _FEW)
    group_end = np.repeat(starts + sizes, sizes)
    is_small = np.repeat(small, sizes)
    places = np.arange(len(ordered))
    for offset in range(1, _FEW):
        left = places[is_small & (places + offset < group_end)]
        if not len(left):
            return
        a, b = ordered[left], ordered[left + offset]
        near = np.bitwise_count(hashes[a] ^ hashes[b]) <= distance
        if near.any():
            yield a[near], b[near]


def _compare(hashes: Array, positions: Array, distance: int) -> Iterator[tuple[Array, Array]]:
    values = hashes[positions]
    for start in range(0, len(positions) - 1, _CHUNK_SIZE):
        few = values[start : start + _CHUNK_SIZE]
        near = np.bitwise_count(few[:, None] ^ values[None, start + 1 :]) <= distance
        place, other = np.nonzero(near)
        # The others begin one place later: those before the diagonal are pairs that are there already, or no pairs.
        later = other >= place
        if later.any():
            yield positions[start + place[later]], positions[start + 1 + other[later]]
