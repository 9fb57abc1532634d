"""How well one property of samples predicts their labels: learned on one half of them, tried on the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from audit.checks.shared.hashes import Array
from audit.checks.shared.significance import FAMILY_Z, wilson

#: Numbers with more distinct values than this are put into as many bins of equal size.
_BINS = 10
#: A class is raised if all but this share of its values are high; it has at least so many samples.
_LOWEST, _FEWEST = 0.1, 20
#: The code of a property that is not known.
_MISSING_CODE = -1


def bins_of(values: Sequence[Any]) -> Array:
    """Return a code for each value: the decile of a number with many distinct values, else one code for each value."""
    numbers = _numbers(values)
    if numbers is None:
        known: dict[Any, int] = {}
        return np.array([_MISSING_CODE if value is None else known.setdefault(value, len(known)) for value in values])
    distinct = np.unique(numbers[~np.isnan(numbers)])
    if len(distinct) <= _BINS:
        return np.where(np.isnan(numbers), _MISSING_CODE, np.searchsorted(distinct, numbers))
    ranked = np.sort(numbers[~np.isnan(numbers)])
    edges = [ranked[len(ranked) * n // _BINS] for n in range(1, _BINS)]
    return np.where(np.isnan(numbers), _MISSING_CODE, np.searchsorted(edges, numbers, side="right"))


def separate_common_values(values: Sequence[Any], bins: Array) -> Array:
    """Return the bins, but with numbers that many samples share, within 1 % of the range, in bins of their own."""
    numbers = _numbers(values)
    if numbers is None or len(np.unique(numbers[~np.isnan(numbers)])) <= _BINS:
        return bins
    known = ~np.isnan(numbers)
    width = (numbers[known].max() - numbers[known].min()) / 100
    if width == 0:
        return bins
    _, inverse, counts = np.unique(np.rint(numbers[known] / width), return_inverse=True, return_counts=True)
    shared = counts[inverse] >= max(5, 0.03 * len(values))
    found = bins.copy()
    found[np.flatnonzero(known)[shared]] = _BINS + inverse[shared]
    return found


def predict(bins: Array, labels: Array, halves: Array) -> tuple[float, float]:
    """Return the accuracy of each bin's commonest label, learned on the other half, and of the commonest label."""
    right = guessed = 0
    for learn in (True, False):
        known = halves == learn
        if not known.any():
            continue
        classes, counts = np.unique(labels[known], return_counts=True)
        common = classes[counts.argmax()]
        codes, best, _, _ = _commonest_labels(bins[known], labels[known])
        here, truth = bins[~known], labels[~known]
        place = np.minimum(np.searchsorted(codes, here), len(codes) - 1)
        said = np.where(codes[place] == here, best[place], common)
        right += int((said == truth).sum())
        guessed += int((truth == common).sum())
    return right / len(labels), guessed / len(labels)


def betrayed_class(
    bins: Array, labels: Array, halves: Array, named_share: float, right_share: float
) -> tuple[int, int, int, int] | None:
    """Return the class that single values name, learned on the other half: label, hits, names, samples; None if none.

    They name at least `named_share` of its samples, and are right at least so often (lower ends of intervals).
    """
    hits: dict[int, int] = {}
    named: dict[int, int] = {}
    for learn in (True, False):
        known = (halves == learn) & (bins != _MISSING_CODE)
        if not known.any():
            continue
        codes, best, most, total = _commonest_labels(bins[known], labels[known])
        pure = (most >= 5) & (most >= 0.8 * total)
        here, truth = bins[halves != learn], labels[halves != learn]
        place = np.minimum(np.searchsorted(codes, here), len(codes) - 1)
        chosen = (codes[place] == here) & pure[place]
        said, truth = best[place][chosen], truth[chosen]
        for label, count in zip(*np.unique(said, return_counts=True), strict=True):
            named[int(label)] = named.get(int(label), 0) + int(count)
        for label, count in zip(*np.unique(said[said == truth], return_counts=True), strict=True):
            hits[int(label)] = hits.get(int(label), 0) + int(count)
    for label, right in sorted(hits.items(), key=lambda pair: (-pair[1], pair[0])):
        samples = int((labels == label).sum())
        if wilson(right, samples, FAMILY_Z)[0] >= named_share and wilson(right, named[label])[0] >= right_share:
            return label, right, named[label], samples
    return None


def raised_class(values: Sequence[float], labels: Array, share: float) -> tuple[int, float] | None:
    """Return the class that has no low values, and the share of other samples below nearly all of its own; None if none.

    What classes show makes their values high or low on average. What was added to each sample of one class, such as noise,
    leaves none of its values low. The share's interval (three standard errors) lies above `share`.
    """
    numbers = np.asarray(values)
    best: tuple[int, float] | None = None
    for label in np.unique(labels).tolist():
        own, others = numbers[labels == label], numbers[labels != label]
        if min(len(own), len(others)) < _FEWEST:
            continue
        below = int((others < np.quantile(own, _LOWEST)).sum())
        if wilson(below, len(others), FAMILY_Z)[0] >= share and (best is None or below / len(others) > best[1]):
            best = int(label), below / len(others)
    return best


def _commonest_labels(bins: Array, labels: Array) -> tuple[Array, Array, Array, Array]:
    """Return each bin, its commonest label (the least of several), how often that occurs, and the size of the bin."""
    classes, numbers = np.unique(labels, return_inverse=True)
    pairs, counts = np.unique(bins.astype(np.int64) * len(classes) + numbers, return_counts=True)
    code, number = np.divmod(pairs, len(classes))
    order = np.lexsort((number, -counts, code))
    code, number, counts = code[order], number[order], counts[order]
    first = np.flatnonzero(np.concatenate([[True], code[1:] != code[:-1]]))
    return code[first], classes[number[first]], counts[first], np.add.reduceat(counts, first)


def _numbers(values: Sequence[Any]) -> Array | None:
    """Return the values as numbers, NaN for None; None if some are not numbers."""
    # A set of types is quicker than a question for each value.
    if not set(map(type, values)) <= {int, float, bool, type(None)}:
        return None
    return np.array(values, dtype=np.float64)
