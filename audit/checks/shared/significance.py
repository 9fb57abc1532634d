"""Intervals of rates, probabilities of counts, and corrections for many tests at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Standard errors for each of about 40 one-sided tests that are made together: 0.13 % for one is 5 % for all (Bonferroni).
FAMILY_Z = 3.0


def wilson(successes: int, trials: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's interval of a rate; `z` is 1.96 for 95 %, and 3.89 for 99.99 %."""
    if not trials:
        return 0.0, 1.0
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, (centre - spread) / (1 + z * z / trials)), min(1.0, (centre + spread) / (1 + z * z / trials))


def binomial_tail(least: int, trials: int, probability: float) -> float:
    """Return the probability of at least so many successes in so many trials."""
    whole, hit, miss = math.lgamma(trials + 1), math.log(probability), math.log1p(-probability)
    terms = (
        math.exp(whole - math.lgamma(n + 1) - math.lgamma(trials - n + 1) + n * hit + (trials - n) * miss)
        for n in range(least, trials + 1)
    )
    return min(1.0, math.fsum(terms))


def normal_tails(z: float) -> float:
    """Return the two-sided probability of a normal variable at least this far from its mean."""
    return math.erfc(abs(z) / math.sqrt(2))


def two_rates(hits: int, trials: int, other_hits: int, other_trials: int) -> float:
    """Return the two-sided probability of so different rates in two independent samples of one rate (pooled z test)."""
    if not trials or not other_trials:
        return 1.0
    pooled = (hits + other_hits) / (trials + other_trials)
    variance = pooled * (1 - pooled) * (1 / trials + 1 / other_trials)
    return 1.0 if variance == 0 else normal_tails((hits / trials - other_hits / other_trials) / math.sqrt(variance))


def fewest_flips(level: float) -> int:
    """Return how many flips, all in one direction, McNemar's exact test needs to reach this level."""
    return math.ceil(1 - math.log2(level))


def signed_rank(count: int, upper: float, ties: float = 0.0) -> tuple[float, float]:
    """Return the two-sided probability of Wilcoxon's signed-rank test, and the effect from -1 to 1.

    `upper` is the sum of the ranks of positive differences among `count` that are not 0; `ties` the sum of t² - 1 over
    them, where t others have the same size.
    """
    whole = count * (count + 1) / 2
    variance = count * (count + 1) * (2 * count + 1) / 24 - ties / 48
    return normal_tails((upper - whole / 2) / math.sqrt(max(variance, 1e-12))), 2 * upper / whole - 1


def holm(chances: Sequence[float], level: float) -> list[bool]:
    """Return which of several tests are significant, so that any false one has at most the probability `level`."""
    order = sorted(range(len(chances)), key=lambda n: chances[n])
    found = [False] * len(chances)
    for rank, n in enumerate(order):
        if chances[n] > level / (len(chances) - rank):
            break
        found[n] = True
    return found
