"""How many labels are wrong, and which: a mixture of labels that follow the model's probabilities and labels that do not.

A right label is drawn from the model's probabilities, once they are made less or more confident: an overfitted model is
surely wrong now and then, so its probabilities count at several temperatures at once. A wrong label is any class, whatever
the model says. The shares of these kinds of labels are those that make the recorded labels likeliest (expectation
maximisation; the likelihood has one maximum). They say of each label how probably it is wrong. A model that errs makes
labels likely that it ranks second or third, so they do not count as wrong; only labels that it ranks anywhere do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audit.checks.shared.hashes import Array

#: The temperatures that are tried for all labels together, and those of single labels in relation to the best one.
_TEMPERATURES = tuple(2 ** (n / 2) for n in range(-4, 8))
_RELATIVE = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
_SMALLEST = np.float32(1e-12)
#: Wrong labels are sure if they make all labels likelier by this factor (its logarithm).
_SURE = 3.0
#: The share of wrong labels is the least that is not less likely than the likeliest by this factor (its logarithm).
_CAUTIOUS = 1.0
#: If more labels seem to be wrong than this share, a model that guesses explains it better.
_MOST_WRONG = 0.5
#: Labels that the model predicts are counted in so many groups.
_GROUPS = 200


@dataclass(frozen=True, slots=True)
class LabelNoise:
    """The shares of the kinds of labels: at each temperature, and wrong; `sure` says whether some are wrong at all."""

    temperatures: tuple[float, ...]
    shares: Array
    sure: bool
    classes: int

    @property
    def wrong_share(self) -> float:
        """Return the share of wrong labels."""
        return float(self.shares[-1])

    def known_share(self, agreed: float) -> float:
        """Return the share of right labels that the model predicts, if it predicts the share `agreed` of all labels.

        It predicts some wrong labels by chance. Where most labels seem to be wrong, the model does not know them: 0.
        """
        if self.wrong_share > _MOST_WRONG:
            return 0.0
        return (agreed - self.wrong_share / self.classes) / (1 - self.wrong_share)

    def wrong_chance(self, probabilities: Array, labels: Array) -> Array:
        """Return for each label the probability that it is wrong."""
        kinds = _kinds(probabilities, labels, self.temperatures) * self.shares
        chance: Array = kinds[:, -1] / np.maximum(kinds.sum(axis=1), 1e-30)
        return chance


def fit_noise(probabilities: Array, labels: Array) -> LabelNoise:
    """Return the shares of right and wrong labels, those of wrong ones estimated with caution."""
    agreed = probabilities.argmax(axis=1) == labels
    everywhere = _temperature(probabilities, labels, agreed)
    temperatures = tuple(everywhere * ratio for ratio in _RELATIVE)
    rows, counts = _group_rows(_kinds(probabilities, labels, temperatures), agreed)
    likeliest, most = _maximise(rows, counts, None)
    none, least = _maximise(rows, counts, 0.0)
    if most - least <= _CAUTIOUS:
        return LabelNoise(temperatures, likeliest if most > least else none, False, probabilities.shape[1])
    low, high, shares = 0.0, float(likeliest[-1]), likeliest
    for _ in range(6):
        middle = (low + high) / 2
        fitted, reached = _maximise(rows, counts, middle, shares)
        if most - reached > _CAUTIOUS:
            low = middle
        else:
            high, shares = middle, fitted
    return LabelNoise(temperatures, shares, most - least >= _SURE, probabilities.shape[1])


def _temperature(probabilities: Array, labels: Array, agreed: Array) -> float:
    """Return the one temperature at which the labels are likeliest, some of them being wrong."""
    rows, counts = _group_rows(_kinds(probabilities, labels, _TEMPERATURES), agreed)
    reached = [_maximise(rows[:, [place, -1]], counts, None)[1] for place in range(len(_TEMPERATURES))]
    return float(_TEMPERATURES[int(np.argmax(reached))])


def _kinds(probabilities: Array, labels: Array, temperatures: tuple[float, ...]) -> Array:
    """Return how likely each label is at each temperature, and if it is wrong: any class."""
    rows, classes = np.arange(len(labels)), probabilities.shape[1]
    logs = np.log(np.maximum(probabilities, _SMALLEST))
    logs -= logs.max(axis=1, keepdims=True)
    found = np.empty((len(labels), len(temperatures) + 1))
    for place, temperature in enumerate(temperatures):
        powers = np.exp(logs / np.float32(temperature))
        found[:, place] = powers[rows, labels] / powers.sum(axis=1)
    found[:, -1] = 1 / classes
    return found


def _group_rows(kinds: Array, agreed: Array) -> tuple[Array, Array]:
    """Return rows and how often each counts: labels that the model predicts are alike, so that some stand for all."""
    if agreed.sum() <= _GROUPS:
        return kinds, np.ones(len(kinds))
    alike = np.maximum(kinds[agreed], _SMALLEST)
    groups = np.array_split(np.argsort(alike[:, len(alike[0]) // 2]), _GROUPS)
    means = np.stack([np.exp(np.log(alike[group]).mean(axis=0)) for group in groups])
    rows = np.concatenate([means, kinds[~agreed]])
    return rows, np.concatenate([[len(group) for group in groups], np.ones(int((~agreed).sum()))])


def _maximise(rows: Array, counts: Array, wrong: float | None, start: Array | None = None) -> tuple[Array, float]:
    """Return the likeliest shares, with a given share of wrong labels if there is one, and the log-likelihood."""
    kinds = rows.shape[1]
    shares = np.full(kinds, 1 / kinds) if start is None else np.maximum(start, 1e-6)
    total = counts.sum()
    for _ in range(300):
        if wrong is not None:
            shares[:-1] *= (1 - wrong) / shares[:-1].sum()
            shares[-1] = wrong
        # Two products of a matrix and a vector take a tenth of the time of a table of all weighted rows.
        new = shares * (rows.T @ (counts / np.maximum(rows @ shares, 1e-30))) / total
        if np.abs(new - shares).max() < 1e-6:
            break
        shares = new
    if wrong is not None:
        shares[:-1] *= (1 - wrong) / shares[:-1].sum()
        shares[-1] = wrong
    return shares, float(counts @ np.log(np.maximum(rows @ shares, 1e-30)))
