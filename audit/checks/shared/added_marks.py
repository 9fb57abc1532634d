"""Whether one group of pictures has a mark that the others do not have: a logo or a watermark, also a translucent one.

What pictures show makes neighbouring pixels differ in either direction, so that the differences nearly cancel out over many
pictures. A mark differs from its surroundings in the same direction in all pictures that have it, and stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from audit.checks.shared.hashes import Array
from audit.checks.shared.picture_grids import blocks

#: A group, and all others together, have at least this many pictures.
_FEWEST = 40
#: So many pixels must show the mark.
_PIXELS = 3
#: A variance below this counts as this: where nearly all pictures are flat, a difference of one level is not a mark.
_LEAST = 16.0
#: Where so many pixels are black or white, pictures are drawings or products: what they show lies at one place.
_GROUND = 0.1
_WHITE = 250


@dataclass(frozen=True, slots=True)
class AddedMark:
    """The group that has the mark, how far its pixels differ (in standard deviations, lower end of an interval), and where."""

    group: int
    effect: float
    rows: tuple[int, int]
    columns: tuple[int, int]


def find_mark(thumbnails: Array, groups: Array, least: float) -> AddedMark | None:
    """Return the group of pictures (n×side×side, codes from 0) with the clearest mark; None if none differs by `least` deviations."""
    counts = np.bincount(groups)
    if len(counts) < 2 or is_drawn(thumbnails):
        return None
    sums, squares = _edge_sums(thumbnails, groups, len(counts))
    best: AddedMark | None = None
    for group, count in enumerate(counts.tolist()):
        others = len(groups) - count
        if min(count, others) < _FEWEST:
            continue
        mean, mean_of_others = sums[group] / count, (sums.sum(axis=0) - sums[group]) / others
        variance = squares[group] / count - mean**2
        variance_of_others = (squares.sum(axis=0) - squares[group]) / others - mean_of_others**2
        deviation = np.sqrt(np.maximum((variance + variance_of_others) / 2, _LEAST))
        # Four standard errors: hundreds of pixels are compared.
        effect = np.abs(mean - mean_of_others) / deviation - 4 * math.sqrt(1 / count + 1 / others)
        marked = effect >= least
        found = float(np.sort(effect.ravel())[-_PIXELS])
        if marked.sum() >= _PIXELS and (best is None or found > best.effect):
            rows, columns = np.nonzero(marked)
            # One pixel at each side is lost to the differences.
            best = AddedMark(
                group,
                found,
                (int(rows.min()) + 1, int(rows.max()) + 1),
                (int(columns.min()) + 1, int(columns.max()) + 1),
            )
    return best


def is_drawn(thumbnails: Array) -> bool:
    """Return whether much of the pictures is black or white: what drawings, digits and products show lies at one place."""
    return not thumbnails.size or bool(((thumbnails == 0) | (thumbnails >= _WHITE)).mean() > _GROUND)


def _edge_sums(thumbnails: Array, groups: Array, count: int) -> tuple[Array, Array]:
    """Return for each group the sums, and the sums of squares, of how far each pixel exceeds its four neighbours."""
    sums: Array | float = 0.0
    squares: Array | float = 0.0
    start = 0
    for block in blocks(thumbnails):
        grey = block.astype(np.float32)
        edges = (
            4 * grey[:, 1:-1, 1:-1] - grey[:, :-2, 1:-1] - grey[:, 2:, 1:-1] - grey[:, 1:-1, :-2] - grey[:, 1:-1, 2:]
        )
        members = (groups[start : start + len(block)] == np.arange(count)[:, None]).astype(np.float32)
        flat = edges.reshape(len(block), math.prod(edges.shape[1:]))
        sums = sums + (members @ flat).astype(np.float64)
        squares = squares + (members @ flat**2).astype(np.float64)
        start += len(block)
    shape = (count, thumbnails.shape[1] - 2, thumbnails.shape[2] - 2)
    return np.reshape(sums, shape), np.reshape(squares, shape)
