"""Minimum, maximum, mean, standard deviation, zeros and non-finite values, exact and in as few passes as possible.

Non-finite elements are counted and left out of the rest; complex numbers are judged by magnitude; booleans count as 0
and 1. The compiled loops add in integers or float64. Without them, float32 sums are taken in float32 over rows of
about a thousand elements and added up in float64 (good to 1e-6). Both pass again where cancellation would show.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from audit.values import native as loops

_ROW = 1024  # float32 elements per partial sum: short enough to keep 1e-6, long enough that calls cost nothing
_SAFE_SHARE = 1e-2  # below this share of E[x²] a variance from two sums has lost too many digits
_MOMENTS = np.vander(np.arange(256, dtype=np.float64), 3, increasing=True).T.copy()


class Statistics(NamedTuple):
    """In the order of the columns."""

    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    zeros: int | None = None
    nonfinite: int | None = None


NO_STATISTICS = Statistics()


def of_histogram(counts: list[int], bands: int) -> Statistics:
    """Return the statistics of a histogram of 256 levels per band, the first `bands` bands taken together."""
    # struct is the fastest way from a list of Python integers to an array, by a factor of two.
    levels: Any = np.frombuffer(struct.pack(f"{len(counts)}q", *counts), np.int64)[: bands * 256]
    if bands > 1:
        levels = np.add.reduce(levels.reshape(bands, 256))
    # Integers below 2**53 in float64: the sums are exact for anything that fits in memory.
    total, first, second = map(int, (_MOMENTS @ levels).tolist())
    seen = levels.nonzero()[0]
    low, high = (int(seen[0]), int(seen[-1])) if total else (255, 0)
    return of_sums(total, (low, high, first, second, int(levels[0])))


def of_sums(count: int, sums: tuple[int, int, int, int, int]) -> Statistics:
    """Return the statistics from (min, max, sum, sum of squares, zeros) of `count` bytes, in integers until the last division."""
    low, high, first, second, zeros = sums
    if not count:
        return Statistics(zeros=0, nonfinite=0)
    variance = (count * second - first * first) / (count * count)
    return Statistics(float(low), float(high), first / count, math.sqrt(variance), zeros, 0)


def of_array(values: Any) -> Statistics:
    """Return the statistics of any numeric numpy array; arrays of other things have none."""
    flat = values.reshape(-1)
    code = flat.dtype.kind
    if code not in "biufc":
        return NO_STATISTICS
    if not flat.size:
        return Statistics(zeros=0, nonfinite=0)
    if code == "b":
        return _of_booleans(flat)
    if flat.dtype == np.uint8 and flat.flags.c_contiguous:
        if loops.native is not None:
            return of_sums(flat.size, loops.native.u8(flat))
        return of_histogram(Image.frombuffer("L", (flat.size, 1), flat, "raw", "L", 0, 1).histogram(), 1)
    if code == "c":
        zeros = int(flat.size - np.count_nonzero(flat))
        # Two exact zeros only: a magnitude that underflows is not a zero.
        return _of_float64(np.abs(flat.astype(np.complex128)), zeros)
    if flat.dtype == np.float32 and flat.dtype.isnative:
        if loops.native is not None and flat.flags.c_contiguous:
            return Statistics._make(loops.native.f32(flat))
        return _of_float32(flat)
    return _of_float64(flat.astype(np.float64), int(flat.size - np.count_nonzero(flat)))


def _of_booleans(flat: Any) -> Statistics:
    ones = int(np.count_nonzero(flat))
    mean = ones / flat.size
    return Statistics(
        float(ones == flat.size), float(ones > 0), mean, math.sqrt(mean * (1 - mean)), flat.size - ones, 0
    )


def _of_float32(flat: Any) -> Statistics:
    low, high = float(np.minimum.reduce(flat)), float(np.maximum.reduce(flat))
    # NaN and infinities show in one of the two, so finite extremes prove that all elements are finite.
    if not (math.isfinite(low) and math.isfinite(high)):
        return _of_float64(flat.astype(np.float64), int(np.count_nonzero(flat == 0)))
    reach = max(-low, high)
    if reach > 1e15 or reach < 1e-15:  # squares would leave float32's range
        return _of_float64(flat.astype(np.float64), int(np.count_nonzero(flat == 0)))
    zeros = int(np.count_nonzero(flat == 0)) if low <= 0 <= high else 0
    mean, variance, safe = _moments(flat)
    if not safe:
        return _of_float64(flat.astype(np.float64), zeros)
    return Statistics(low, high, mean, math.sqrt(variance), zeros, 0)


def _moments(flat: Any) -> tuple[float, float, bool]:
    """Return mean, variance, and whether the variance can be trusted."""
    size = flat.size
    whole = size - size % _ROW
    rows = flat[:whole].reshape(-1, _ROW)
    # einsum and vecdot are SIMD and, on rows this short, single-threaded whatever BLAS is set to.
    total = float(np.add.reduce(np.einsum("ij->i", rows), dtype=np.float64))
    squares = float(np.add.reduce(np.vecdot(rows, rows), dtype=np.float64))
    if whole < size:
        rest = flat[whole:].astype(np.float64)
        total += float(rest.sum())
        squares += float(rest @ rest)
    mean = total / size
    variance = squares / size - mean * mean
    return mean, variance, variance >= _SAFE_SHARE * squares / size


def _of_float64(values: Any, zeros: int) -> Statistics:
    finite = values[np.isfinite(values)]
    nonfinite = int(values.size - finite.size)
    if not finite.size:
        return Statistics(zeros=zeros, nonfinite=nonfinite)
    low, high = float(finite.min()), float(finite.max())
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        scale = max(abs(low), abs(high))
        scale = scale if scale > 1e150 else 1.0  # keeps squares and sums of huge values finite
        scaled = finite / scale
        mean = min(max(float(scaled.mean()) * scale, low), high)
        std = float(np.sqrt(np.mean(np.square(scaled - mean / scale)))) * scale
    return Statistics(low, high, mean, std, zeros, nonfinite)
