"""Find pairs of pictures of which one is the other with a part that was covered or replaced: a square, a caption, a logo.

The rest kept its pixels, so parts of the two thumbnails are equal byte for byte. Different pictures of one kind never have
an equal part with detail: of 10,000 photographs of CIFAR-10 no two, and of as many handwritten digits three pairs one each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audit.checks.shared.hashes import Array
from audit.checks.shared.picture_grids import blocks, spread

#: A thumbnail has so many parts down and across, of so many pixels.
_PARTS, _PIXELS = 4, 8
#: A part has detail if its levels vary by so much, and if it has so many different ones: a drawn edge has few.
_VARIATION, _LEVELS = 3.0, 8
#: What more pictures than this have in common is a background or a form.
_MOST = 8
#: A pair has at least so many equal parts, and this share of the detailed parts of each.
_FEWEST, _SHARE = 3, 0.25
#: Smaller pictures show too little: a part of a thumbnail is made of a few of their pixels.
_LEAST_SIDE = 16


@dataclass(frozen=True, slots=True)
class CoveredPair:
    """Two pictures by their places, the earlier first: how many of the parts with detail are equal."""

    first: int
    second: int
    equal: int
    parts: int


def covered_pairs(thumbnails: Array, sides: Array | None = None) -> list[CoveredPair]:
    """Return the pairs (i < j) of thumbnails (n×32×32) that are equal in many parts; `sides` are the shorter sides of the pictures."""
    if len(thumbnails) < 2:
        return []
    found = [_find_keys(block) for block in blocks(thumbnails)]
    keys, detailed = (np.concatenate(parts) for parts in zip(*found, strict=True))
    if sides is not None:
        detailed &= np.asarray(sides)[:, None] >= _LEAST_SIDE
    pictures = np.nonzero(detailed)[0]
    values = keys[detailed]
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(values[order]) != 0])) if len(values) else order
    sizes = np.diff(np.append(starts, len(values)))
    few = (sizes > 1) & (sizes <= _MOST)
    # Each of several pictures with an equal part is paired with the first of them.
    members = np.concatenate(
        [np.arange(1, size) + start for start, size in zip(starts[few], sizes[few], strict=True)] or [order[:0]]
    )
    firsts = np.repeat(starts[few], sizes[few] - 1)
    pairs = np.stack([pictures[order[firsts]], pictures[order[members]]], axis=1)
    pairs, equal = np.unique(pairs, axis=0, return_counts=True)
    parts = detailed.sum(axis=1)[pairs].max(axis=1) if len(pairs) else equal
    kept = (equal >= _FEWEST) & (equal >= _SHARE * parts)
    rows = zip(pairs[kept].tolist(), equal[kept].tolist(), parts[kept].tolist(), strict=True)
    return [CoveredPair(first, second, count, total) for (first, second), count, total in rows]


def _find_keys(thumbnails: Array) -> tuple[Array, Array]:
    """Return a number for each part of each picture, which follows from its pixels and its place, and whether it has detail."""
    count = len(thumbnails)
    parts = thumbnails.reshape(count, _PARTS, _PIXELS, _PARTS, _PIXELS).swapaxes(2, 3)
    flat = np.ascontiguousarray(parts).reshape(count * _PARTS**2, _PIXELS**2)
    ordered = np.sort(flat, axis=1)
    detailed = (spread(flat) >= _VARIATION) & (np.count_nonzero(np.diff(ordered, axis=1), axis=1) >= _LEVELS - 1)
    rows = flat.view(np.uint64)
    keys = np.tile(np.arange(_PARTS**2, dtype=np.uint64), count)
    for row in rows.T:
        # The steps of the hash function splitmix64.
        keys = (keys ^ row) + np.uint64(0x9E3779B97F4A7C15)
        keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return keys.reshape(count, -1), detailed.reshape(count, -1)
