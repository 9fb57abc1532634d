"""Arithmetic on many small grey pictures at once: averages, unit vectors, and how a picture changes when it moves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from audit.checks.shared.hashes import Array

#: How many pictures are measured together.
_BLOCK = 500


def blocks(pictures: Array) -> Iterator[Array]:
    """Yield pictures in blocks that the processor's cache holds: at least one, if it is an empty one."""
    for start in range(0, max(1, len(pictures)), _BLOCK):
        yield pictures[start : start + _BLOCK]


def spread(pictures: Array) -> Array:
    """Return the standard deviation of each picture's values, in one pass over them; they lie around 0 or are bytes."""
    size = max(1, math.prod(pictures.shape[1:]))
    flat = pictures.reshape(len(pictures), size).astype(np.float32, copy=False)
    mean = (flat @ np.ones(size, np.float32)).astype(np.float64) / size
    square = np.einsum("nd,nd->n", flat, flat).astype(np.float64) / size
    deviation: Array = np.sqrt(np.maximum(square - mean**2, 0))
    return deviation


def pool(pictures: Array, side: int) -> Array:
    """Return n square pictures averaged to a side that is a half, a quarter… of theirs."""
    while pictures.shape[1] > side:
        # Sums of slices take a quarter of the time of a mean over two axes.
        rows = pictures[:, ::2] + pictures[:, 1::2]
        pictures = (rows[:, :, ::2] + rows[:, :, 1::2]) * pictures.dtype.type(0.25)
    return pictures


def unit_vectors(pictures: Array) -> Array:
    """Return each picture as one vector with mean 0 and length 1."""
    flat = pictures.reshape(len(pictures), math.prod(pictures.shape[1:]))
    flat = flat - flat.mean(axis=1, keepdims=True)
    unit: Array = (flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)).astype(np.float32)
    return unit


def changes(pictures: Array, side: int | None = None) -> Array:
    """Return how pictures change with gain, shift and scale: n×5×pixels, each with mean 0; averaged to `side`."""
    count, length = pictures.shape[:2]
    side = side or length
    operators = _operators(length, side)
    # Slopes and averages are linear: one large product across, then small ones down.
    across = (pictures.reshape(-1, length) @ operators.T).reshape(count, length, 3, side)
    down = operators @ np.ascontiguousarray(across[:, :, 0])
    stacked = np.empty((count, 5, side, side), np.float32)
    stacked[:, 0], stacked[:, 2], stacked[:, 4] = down.reshape(count, 3, side, side).transpose(1, 0, 2, 3)
    stacked[:, 1], stacked[:, 3] = (operators[:side] @ np.ascontiguousarray(across[:, :, n]) for n in (1, 2))
    flat = stacked.reshape(count, 5, side * side)
    flat -= flat.mean(axis=2, keepdims=True)
    return flat


@lru_cache(maxsize=16)
def _operators(length: int, side: int) -> Array:
    """Return what averages one axis to `side`, as it is, its slope, and its slope times the distance from the centre."""
    average = np.repeat(np.eye(side, dtype=np.float32), length // side, axis=1) / np.float32(length // side)
    slope = np.gradient(np.eye(length, dtype=np.float32), axis=0)
    distance = np.arange(length, dtype=np.float32) - np.float32((length - 1) / 2)
    return np.concatenate([average, average @ slope, average @ (distance[:, None] * slope)])


def spans(pictures: Array) -> Array:
    """Return an orthonormal basis of the changes of each picture: n×5×pixels."""
    given = changes(pictures)
    lengths = np.maximum(np.linalg.norm(given, axis=2, keepdims=True), 1e-6)
    given = given / lengths
    gram = given @ given.transpose(0, 2, 1) + 1e-5 * np.eye(5, dtype=np.float32)
    # A product with the small inverse takes a fifth of the time of a solve for all pixels.
    basis: Array = (np.linalg.inv(np.linalg.cholesky(gram)) @ given).astype(np.float32)
    return basis
