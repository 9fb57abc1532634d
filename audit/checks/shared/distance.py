"""The distance of two distributions, and the probability of that distance by chance alone.

Closed forms over counts and quantiles, because a baseline keeps no samples; the tests compare them with scipy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def population_stability(before: Mapping[str, int], now: Mapping[str, int]) -> float:
    """Return the sum of (p - q) ln(p / q) over the classes; an empty class counts as half a sample."""
    keys = before.keys() | now.keys()
    totals = [sum(counts.values()) + 0.5 * len(keys) for counts in (before, now)]
    result = 0.0
    for key in keys:
        p, q = ((counts.get(key, 0) + 0.5) / total for counts, total in zip((before, now), totals, strict=True))
        result += (q - p) * math.log(q / p)
    return result


def chi_square_chance(before: Mapping[str, int], now: Mapping[str, int]) -> float:
    """Return the probability that two samples of one distribution differ this much (chi-square of a 2×k table)."""
    keys = [key for key in before.keys() | now.keys() if before.get(key, 0) + now.get(key, 0)]
    n, m = sum(before.values()), sum(now.values())
    if len(keys) < 2 or not n or not m:
        return 1.0
    statistic = 0.0
    for key in keys:
        both = before.get(key, 0) + now.get(key, 0)
        for have, size in ((before.get(key, 0), n), (now.get(key, 0), m)):
            expected = both * size / (n + m)
            statistic += (have - expected) ** 2 / expected
    freedom = len(keys) - 1
    # Wilson and Hilferty: the cube root of a chi-square variable is nearly normal.
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


def kolmogorov_smirnov(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the largest distance of two distribution functions, each given by evenly spaced quantiles."""
    return max((abs(_share_below(a, x) - _share_below(b, x)) for x in (*a, *b)), default=0.0)


def _share_below(quantiles: Sequence[float], x: float) -> float:
    """Return the share at or below x, interpolated linearly between two quantiles."""
    last = len(quantiles) - 1
    if x < quantiles[0]:
        return 0.0
    if x >= quantiles[last]:
        return 1.0
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        if quantiles[middle] <= x:
            low = middle
        else:
            high = middle
    return (low + (x - quantiles[low]) / (quantiles[high] - quantiles[low])) / last


def kolmogorov_smirnov_chance(distance: float, n: int, m: int) -> float:
    """Return the probability of at least this distance between n and m samples of one distribution (Kolmogorov's limit)."""
    root = math.sqrt(n * m / (n + m))
    x = (root + 0.12 + 0.11 / root) * distance
    if x < 0.2:
        return 1.0
    total = 2 * sum((-1.0) ** (k - 1) * math.exp(-2 * k * k * x * x) for k in range(1, 101))
    return min(1.0, max(0.0, total))
