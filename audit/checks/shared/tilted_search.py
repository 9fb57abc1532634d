"""Find pairs of pictures of which one is the other, turned by a few degrees, with corners that were filled or cut off.

Only what lies within a circle is compared: it stays there. The picture that is most like each one there is fitted to it by a
linear change (gain, turn, shift); the best pairs are aligned in a few such steps.
"""

from __future__ import annotations

import numpy as np

from audit.checks.shared.hashes import Array
from audit.checks.shared.picture_alignment import COMPARED, SIDE
from audit.checks.shared.picture_grids import pool

#: The least correlation within the circle, at 8×8, and the most that the first fit may leave unexplained.
_CORRELATION, _LEFT_BY_FIT = 0.8, 0.25
#: The most pairs that are aligned, and in how many steps.
_MOST, _STEPS = 1_500, 6
#: The largest turn (radians) and shift (pixels); the largest of one step are half and two thirds of it.
_MOST_TURN, _MOST_SHIFT = 0.3, 3.0
#: A smaller turn (degrees) is none: that pair is left to the other searches.
_LEAST_TURN = 1.5
_SEARCH_SIDE = 8
_BLOCK = 500


def _axes(side: int) -> tuple[Array, Array]:
    """Return how far each pixel lies from the centre, across and down."""
    axis = np.arange(side, dtype=np.float32) - np.float32((side - 1) / 2)
    across, down = np.meshgrid(axis, axis)
    return across, down


#: The pixels that lie within the circle, at the three sides; no turn and shift brings in a corner.
_INNER_PIXELS = np.hypot(*_axes(SIDE)) <= 0.42 * SIDE
_COMPARED_PIXELS = pool(_INNER_PIXELS.astype(np.float32)[None], COMPARED)[0] >= 0.99
_SEARCH_PIXELS = pool(_COMPARED_PIXELS.astype(np.float32)[None], _SEARCH_SIDE)[0] > 0.4


def tilted_pairs(thumbnails: Array) -> tuple[Array, Array, Array]:
    """Return pairs (i < j) that may be turned copies, the share that the first leaves unexplained of the second, and the turns in degrees."""
    pairs = _nearest_pairs(thumbnails)
    middle = pool(thumbnails.astype(np.float32), COMPARED)
    parts = np.array_split(pairs, max(1, -(-len(pairs) // _BLOCK)))
    left = np.concatenate([_fit(middle[part[:, 0]], middle[part[:, 1]])[1] for part in parts])
    best = np.argsort(left, kind="stable")[:_MOST]
    pairs = pairs[best[left[best] <= _LEFT_BY_FIT]]
    parts = np.array_split(pairs, max(1, -(-len(pairs) // _BLOCK)))
    found = [_align(thumbnails[part[:, 0]].astype(np.float32), middle[part[:, 1]]) for part in parts]
    left, turns = (np.concatenate(both) for both in zip(*found, strict=True))
    turned = np.abs(turns) >= _LEAST_TURN
    return pairs[turned], left[turned], turns[turned]


def _nearest_pairs(thumbnails: Array) -> Array:
    """Return each picture with the one that correlates most with it within the circle, if it does enough."""
    grids = pool(thumbnails.astype(np.float32), _SEARCH_SIDE)[:, _SEARCH_PIXELS]
    grids -= grids.mean(axis=1, keepdims=True)
    units = grids / np.maximum(np.linalg.norm(grids, axis=1, keepdims=True), 1e-6)
    nearest, alike = np.zeros(len(units), np.int64), np.zeros(len(units), np.float32)
    for start in range(0, len(units), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(units)))
        table = units[rows] @ units.T
        table[rows - start, rows] = -1
        nearest[rows], alike[rows] = table.argmax(axis=1), table.max(axis=1)
    near = np.flatnonzero(alike >= _CORRELATION)
    pairs: Array = np.unique(np.sort(np.stack([near, nearest[near]], axis=1), axis=1), axis=0)
    return pairs


def _align(first: Array, second: Array) -> tuple[Array, Array]:
    """Return what each first picture (n×32×32) leaves unexplained of the second (n×16×16) at best, and its turn in degrees."""
    left, turns = np.ones(len(first), np.float32), np.zeros(len(first), np.float32)
    moved = np.zeros((len(first), 3), np.float32)
    most = np.array([_MOST_TURN, _MOST_SHIFT, _MOST_SHIFT], np.float32)
    for _ in range(_STEPS):
        warped = pool(_turn(first, moved), COMPARED)
        rest = _measure_unexplained(warped, second)
        better = rest < left
        left[better], turns[better] = rest[better], np.degrees(moved[better, 0])
        moved = np.clip(moved + _fit(warped, second)[0], -most, most)
    return left, turns


def _turn(pictures: Array, moved: Array) -> Array:
    """Return pictures turned about their centres, and shifted (linear interpolation)."""
    across, down = _axes(SIDE)
    turn, shift, sink = (moved[:, n, None, None] for n in range(3))
    most = np.float32(SIDE - 1.001)
    x = np.clip(np.cos(turn) * across - np.sin(turn) * down + shift + (SIDE - 1) / 2, 0, most)
    y = np.clip(np.sin(turn) * across + np.cos(turn) * down + sink + (SIDE - 1) / 2, 0, most)
    left, top = x.astype(np.int64), y.astype(np.int64)
    x, y = x - left, y - top
    place = np.arange(len(pictures))[:, None, None] * SIDE**2 + top * SIDE + left
    flat = pictures.ravel()
    above = flat[place] * (1 - x) + flat[place + 1] * x
    below = flat[place + SIDE] * (1 - x) + flat[place + SIDE + 1] * x
    turned: Array = (above * (1 - y) + below * y).astype(np.float32)
    return turned


def _fit(pictures: Array, wanted: Array) -> tuple[Array, Array]:
    """Return the turn and the shifts that the linear fit suggests (pixels of 32), and what it leaves unexplained."""
    across, down = _axes(COMPARED)
    slope_down, slope_across = np.gradient(pictures, axis=(1, 2)) if len(pictures) else (pictures, pictures)
    ways = (pictures, across * slope_down - down * slope_across, slope_across, slope_down)
    given, target = np.stack([_take_inner(way) for way in ways], axis=1), _take_inner(wanted)
    normal = given @ given.transpose(0, 2, 1)
    normal += np.eye(4, dtype=np.float32) * (1e-4 * np.trace(normal, axis1=1, axis2=2) / 4 + 1e-6)[:, None, None]
    sums = given @ target[:, :, None]
    solved = np.linalg.solve(normal, sums)[:, :, 0]
    explained = (solved * sums[:, :, 0]).sum(axis=1) / np.maximum((target**2).sum(axis=1), 1e-6)
    gain = np.where(np.abs(solved[:, :1]) < 1e-3, 1e-3, solved[:, :1])
    most = np.array([_MOST_TURN / 2, _MOST_SHIFT * 2 / 3, _MOST_SHIFT * 2 / 3], np.float32)
    step = solved[:, 1:] / gain * np.array([1, SIDE / COMPARED, SIDE / COMPARED], np.float32)
    return np.clip(step, -most, most), 1 - explained


def _measure_unexplained(pictures: Array, wanted: Array) -> Array:
    """Return the share of each wanted picture that the other leaves unexplained within the circle."""
    one, two = _take_inner(pictures), _take_inner(wanted)
    product, lengths = (one * two).sum(axis=1), (one**2).sum(axis=1) * (two**2).sum(axis=1)
    rest: Array = 1 - np.maximum(product, 0) ** 2 / np.maximum(lengths, 1e-6)
    return rest


def _take_inner(pictures: Array) -> Array:
    """Return the pixels within the circle, with mean 0."""
    flat = pictures[:, _COMPARED_PIXELS]
    centred: Array = flat - flat.mean(axis=1, keepdims=True)
    return centred
