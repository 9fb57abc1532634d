"""Find pairs of pictures of which one may be the other, turned by 90, 180 or 270 degrees.

Each thumbnail is turned until its brightest quarter is the top left one. Those that are turned by different angles and then
have nearly the same perceptual hash are candidates, to be aligned like all others.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from audit.checks.shared.hashes import Array, near_pairs
from audit.checks.shared.picture_grids import blocks, pool, unit_vectors

#: How many of the 64 bits may differ: turning changes none, and compression a few.
_BITS = 2
#: The most candidates of each angle that are aligned. Among handwritten digits there are many, and none of them is a copy.
_MOST = 200
#: The most pairs with nearly the same hash that are looked at.
_MOST_CLOSE = 1_000_000


def find_turned_pairs(thumbnails: Array) -> Iterator[tuple[Array, int]]:
    """Yield pairs (i < j), and by how many quarters the second picture is turned to the left against the first."""
    if len(thumbnails) < 2:
        return
    found = [_turn_upright(block) for block in blocks(thumbnails)]
    hashes, quarters, units = (np.concatenate(parts) for parts in zip(*found, strict=True))
    pairs = _close_pairs(hashes)
    apart = (quarters[pairs[:, 0]] - quarters[pairs[:, 1]]) % 4
    for angle in (1, 2, 3):
        chosen = pairs[apart == angle]
        alike = np.einsum("nd,nd->n", units[chosen[:, 0]], units[chosen[:, 1]])
        yield chosen[np.argsort(-alike, kind="stable")[:_MOST]], angle


def _close_pairs(hashes: Array) -> Array:
    """Return the pairs (i < j) with nearly the same hash; `near_pairs` has of equal hashes only those with the first."""
    unique, groups, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    alike = np.concatenate([near_pairs(unique, _BITS), np.arange(len(unique))[:, None].repeat(2, axis=1)])
    most = int(counts.max())
    while most > 1 and int(np.minimum(counts, most)[alike].prod(axis=1).sum()) > _MOST_CLOSE:
        most //= 2
    counts = np.minimum(counts, most)
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(len(unique)))
    sizes = counts[alike].prod(axis=1)
    which = np.arange(len(alike)).repeat(sizes)
    first, second = np.divmod(np.arange(len(which)) - (sizes.cumsum() - sizes).repeat(sizes), counts[alike[which, 1]])
    pairs = np.stack([order[starts[alike[which, 0]] + first], order[starts[alike[which, 1]] + second]], axis=1)
    # Within a group each pair is there twice, and each picture with itself.
    pairs = pairs[(alike[which, 0] != alike[which, 1]) | (first < second)]
    return np.sort(pairs, axis=1)


def _turn_upright(thumbnails: Array) -> tuple[Array, Array, Array]:
    """Return of each picture with its brightest quarter at the top left: the hash, how often it was turned left for that, a unit vector."""
    small = pool(thumbnails.astype(np.float32), 8)
    quarters = pool(small, 2)
    # Top left, top right, bottom right, bottom left: so often a picture is turned left until that one is top left.
    turns = np.argmax(np.stack([quarters[:, 0, 0], quarters[:, 0, 1], quarters[:, 1, 1], quarters[:, 1, 0]]), axis=0)
    upright = np.stack([np.rot90(small, n, axes=(1, 2)) for n in range(4)])[turns, np.arange(len(small))]
    # The pixels that are brighter than the mean do not change with the levels. The median would be the background of a
    # drawing: compression changes what is brighter than that.
    flat = upright.reshape(len(upright), 64)
    bits = np.packbits(flat > flat.mean(axis=1, keepdims=True), axis=1)
    return bits.view(">u8").ravel().astype(np.uint64), turns, unit_vectors(upright)
