"""McNemar's exact test: could so many flips one way and so few the other be chance?

Under chance each flip is as likely a regression as a fix, so their number follows a binomial distribution with
probability one half. Nothing is approximated by a normal or chi-square curve, however many flips there are.
"""

from __future__ import annotations

import math

#: Up to here the tail is summed in whole numbers; beyond, in floating point from logarithms of factorials.
_WHOLE = 5_000


def p_value(regressions: int, fixes: int) -> float:
    """Return the two-sided probability of a split at least as uneven; 1.0 when nothing flipped."""
    if regressions < 0 or fixes < 0:
        raise ValueError("counts of flips cannot be negative")
    total, fewer = regressions + fixes, min(regressions, fixes)
    if 2 * fewer == total:
        return 1.0
    return min(1.0, _exact_test(total, fewer) if total <= _WHOLE else _log_tail(total, fewer))


def _exact_test(total: int, fewer: int) -> float:
    term = tail = 1
    for k in range(fewer):
        term = term * (total - k) // (k + 1)
        tail += term
    # Both are whole numbers of any size, so their quotient is rounded only once.
    return 2 * tail / 2**total if total < 1000 else math.exp(math.log(2 * tail) - total * math.log(2))


def _log_tail(total: int, fewer: int) -> float:
    largest = math.lgamma(total + 1) - math.lgamma(fewer + 1) - math.lgamma(total - fewer + 1) - total * math.log(2)
    # From the largest term downwards, each relative to it: the rest is too small to be seen soon enough.
    relative, term, k = [1.0], 1.0, fewer
    while k > 0 and term > 1e-18:
        term *= k / (total - k + 1)
        relative.append(term)
        k -= 1
    return 2 * math.exp(largest) * math.fsum(relative)
