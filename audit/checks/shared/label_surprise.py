"""How unlikely a label must be before it is probably wrong, and not the model.

A model that is right in 95 % of the samples contradicts 5 % of the labels, and all of those may be right. So its
probabilities are first made as confident as it is right on average (temperature scaling). Then they say how many labels
of each small probability to expect. Where far more labels are that unlikely, most of them are wrong: if 2 were expected
and 20 are seen, about 18 of the 20 are. That does not suffice for a model that is sometimes surely wrong; so the number
of doubts is also limited by the number of labels that the model ranks last, as only wrong labels often are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from audit.checks.shared.hashes import Array

#: Bins of a label's surprise, -log of its probability.
_EDGES = np.arange(0, 30.01, 0.1)
_SMALLEST = 1e-12


#: As many labels may be listed where the ranks give too little evidence to say how many are wrong.
_ALWAYS = 3
#: With fewer labels, or classes, nothing follows from their ranks.
_FEW_LABELS, _FEW_CLASSES = 100, 4


@dataclass(frozen=True, slots=True)
class LabelDoubt:
    """When a label is doubtful: how unlikely it must be, how many may be, and how many of those are probably wrong."""

    temperature: float
    least_surprise: float
    most: int
    precision: float
    #: Whether labels that the model ranks last show that some are wrong; else it may be the model.
    sure: bool


def judge_labels(probabilities: Array, labels: Array, precision: float, total: int) -> LabelDoubt:
    """Return when labels are doubtful, by rows of `total` samples: so that this share of the doubts is right."""
    temperature = _temperature_of(probabilities, labels)
    chances = _scaled(np.log(np.maximum(probabilities, _SMALLEST)), temperature)
    surprise = np.minimum(-np.log(np.maximum(chances, _SMALLEST)), _EDGES[-1] - 1e-6)
    own = np.arange(len(labels)), labels
    seen = np.histogram(surprise[own], _EDGES)[0][::-1].cumsum()[::-1]
    expected = np.histogram(surprise, _EDGES, weights=chances)[0][::-1].cumsum()[::-1]
    # One expected label more or less must not decide.
    good = np.flatnonzero((seen > 0) & (1 - (expected + np.sqrt(expected)) / np.maximum(seen, 1) >= precision))
    if not len(good):
        return LabelDoubt(temperature, float("inf"), 0, 0.0, False)
    # Of few labels or classes the ranks say nothing.
    few = len(labels) < _FEW_LABELS or chances.shape[1] < _FEW_CLASSES
    wrong = _wrong_by_rank(chances, labels) * total / len(labels)
    most = max(_ALWAYS, int(wrong / precision))
    listed = seen[good[0]] * total / len(labels)
    share = 1 - expected[good[0]] / seen[good[0]]
    return LabelDoubt(
        temperature, float(_EDGES[good[0]]), most, float(min(share, max(wrong / listed, precision))), few or wrong >= 1
    )


def _wrong_by_rank(chances: Array, labels: Array) -> float:
    """Return how many labels are wrong at least, by those that the model ranks last.

    A wrong label has any rank, whereas a model that errs ranks the right class second or third. So the last third of
    the ranks shows the wrong labels.
    """
    classes = chances.shape[1]
    ranks = (chances > chances[np.arange(len(labels)), labels][:, None]).sum(axis=1)
    last = ranks >= max(2, -(-2 * classes // 3))
    share = (classes - max(2, -(-2 * classes // 3))) / (classes - 1)
    if share <= 0:
        return 0.0
    ordered = np.sort(chances, axis=1)[:, : round(share * (classes - 1))]
    surplus = last.sum() - ordered.sum() - np.sqrt(last.sum())
    return float(max(0.0, float(surplus) / share))


def _temperature_of(probabilities: Array, labels: Array) -> float:
    """Return the temperature at which the mean confidence is the accuracy."""
    logs = np.log(np.maximum(probabilities, _SMALLEST))
    right = float((probabilities.argmax(axis=1) == labels).mean())
    low, high = 0.2, 20.0
    for _ in range(25):
        middle = math.sqrt(low * high)
        if float(_scaled(logs, middle).max(axis=1).mean()) > right:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def surprise_of(probabilities: Array, places: Array, temperature: float) -> Array:
    """Return the surprise of one class of each row."""
    chances = _scaled(np.log(np.maximum(probabilities, _SMALLEST)), temperature)
    surprise: Array = -np.log(np.maximum(chances[np.arange(len(chances)), places], _SMALLEST))
    return surprise


def _scaled(logs: Array, temperature: float) -> Array:
    powers = np.exp((logs - logs.max(axis=1, keepdims=True)) / temperature)
    scaled: Array = powers / powers.sum(axis=1, keepdims=True)
    return scaled
