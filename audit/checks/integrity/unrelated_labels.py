"""Labels and measured targets that are not those of their samples, as the predictions of a good model show."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, TypedDict

import numpy as np

from audit.checks.base import Finding
from audit.checks.context import Context
from audit.checks.shared.significance import normal_tails

Array = np.ndarray[Any, Any]
#: So many predictions are needed, and so many measured ones are looked at.
_FEWEST, _MOST = 100, 5_000
#: A model that is sure of itself, and does not predict one class for most samples.
_SURE, _COMMONEST = 0.8, 0.5
#: Predictions and labels with less association than this (Cramér's V) have nothing to do with each other.
_LEAST_ASSOCIATION = 0.1
#: The rank correlation that shows that a target belongs to a prediction; as they are, they have less than half of it.
_FITS = 0.5
#: The decimal logarithm of target by prediction beyond which a target is far away, how many of them are a part of their own, and the
#: share of the others that is near.
_FAR, _FEWEST_FAR, _LEAST_FAR, _MOSTLY_NEAR = 0.5, 10, 0.03, 0.6
#: Nearly all of that part are as far away, and have the sign that is predicted.
_ALIKE, _MOSTLY_ALIKE = 0.3, 0.9
#: The probability that chance causes such a correlation.
_CHANCE = 0.001
#: Checks that find why a model that is sure may be wrong about everything.
_CAUSES = ("probe", "evaluation_mode", "class_order", "scale", "preprocessing", "channel_order")


class _Pair(TypedDict):
    """How many samples have a label and a prediction, and the sum of their confidences."""

    label: int
    predicted: int
    count: int
    confidence: float


def find_unrelated_labels(context: Context, predictions: str, where: str) -> Iterable[Finding]:
    """Report predictions of a model that is sure, but whose classes have nothing to do with the labels."""
    query = (
        f"SELECT label, predicted, count(*) AS count, sum(confidence)::DOUBLE AS confidence FROM {predictions} "
        "WHERE label >= 0 AND predicted IS NOT NULL AND confidence IS NOT NULL GROUP BY label, predicted"
    )
    rows = context.facts.typed_rows(_Pair, query)
    total = sum(row["count"] for row in rows)
    predicted: Counter[int] = Counter()
    for row in rows:
        predicted[row["predicted"]] += row["count"]
    if total < _FEWEST or max(predicted.values()) > _COMMONEST * total:
        return
    confidence = sum(row["confidence"] for row in rows) / total
    if confidence < _SURE or (association := _cramers_v(rows, total)) is None or association > _LEAST_ASSOCIATION:
        return
    right = sum(row["count"] for row in rows if row["label"] == row["predicted"]) / total
    yield Finding(
        f"What the model predicts has nothing to do with the labels{where} (Cramér's V {association:.2f}, {right:.1%} of {total:,} are "
        f"right), although it is sure (mean confidence {confidence:.1%}). Are the labels those of other samples?",
        value=association,
        threshold=_LEAST_ASSOCIATION,
        sql=query,
        causes=_CAUSES,
    )


def _cramers_v(rows: list[_Pair], total: int) -> float | None:
    """Return Cramér's V of labels and predictions, corrected for what chance causes; None for fewer than three classes."""
    places = [
        {number: place for place, number in enumerate(sorted({row[key] for row in rows}))}
        for key in ("label", "predicted")
    ]
    if min(map(len, places)) < 3:
        return None
    table = np.zeros((len(places[0]), len(places[1])))
    for row in rows:
        table[places[0][row["label"]], places[1][row["predicted"]]] = row["count"]
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / total
    share = float(((table - expected) ** 2 / expected).sum()) / total
    sizes = [size - (size - 1) ** 2 / (total - 1) for size in table.shape]
    excess = share - (table.shape[0] - 1) * (table.shape[1] - 1) / (total - 1)
    return math.sqrt(max(0.0, excess) / max(1e-9, min(sizes) - 1))


def find_shifted_targets(context: Context, predictions: str, where: str) -> Iterable[Finding]:
    """Report measured targets that fit the predictions of a neighbour, or only with the other sign."""
    query = (
        f"SELECT output, target FROM {predictions} WHERE len(target) > 0 AND len(target) = len(output) "
        f"ORDER BY epoch, batch, position, index LIMIT {_MOST}"
    )
    rows = context.rows(query)
    width = len(rows[0]["target"]) if rows else 0
    kept = [row for row in rows if len(row["target"]) == width]
    given = np.array([[*row["output"], *row["target"]] for row in kept], dtype=np.float64)
    if len(given) < _FEWEST or not np.isfinite(given).all():
        return
    outputs, targets = given[:, :width], given[:, width:]
    own = _correlation(outputs, targets)
    changes = [
        (f"Targets are shifted by one row{where}: the predictions fit those of the sample {side}", _correlation(outputs, np.roll(targets, step, 0)))
        for step, side in ((1, "before"), (-1, "after"))
    ]  # fmt: skip
    changes.append((f"Targets{where} have the other sign: the predictions fit them when it is changed", -own))
    text, best = max(changes, key=lambda change: change[1])
    if best >= _FITS and own < best / 2 and normal_tails(best * math.sqrt(len(given))) * len(changes) < _CHANCE:
        yield Finding(
            f"{text} (rank correlation {best:.2f}, and {own:.2f} as they are).",
            value=best,
            threshold=own,
            sql=query,
        )
    elif width == 1:
        yield from _find_other_unit(outputs[:, 0], targets[:, 0], where, query)


def _find_other_unit(outputs: Array, targets: Array, where: str, query: str) -> Iterable[Finding]:
    """Report targets of which a part is ten, a hundred or a thousand times what is predicted, and the others are not."""
    usable = (outputs != 0) & (targets != 0)
    ratios = np.log10(np.abs(targets[usable] / outputs[usable]))
    same_sign = np.sign(targets[usable]) == np.sign(outputs[usable])
    far = np.abs(ratios) > _FAR
    if far.sum() < max(_FEWEST_FAR, _LEAST_FAR * len(ratios)) or (np.abs(ratios) < _FAR).mean() < _MOSTLY_NEAR:
        return
    power = int(np.rint(np.median(ratios[far])))
    # Where little is predicted, the ratio is large by chance, and then neither alike nor of one sign.
    is_alike = np.mean(np.abs(ratios[far] - power) < _ALIKE) >= _MOSTLY_ALIKE and same_sign[far].mean() >= _MOSTLY_ALIKE
    if power and is_alike:
        size = f"{10 ** abs(power):,} times {'as large as' if power > 0 else 'smaller than'}"
        yield Finding(
            f"{int(far.sum()):,} of {len(ratios):,} targets{where} are about {size} what is predicted, and the others are not: "
            "are they in another unit?",
            value=float(10.0**power),
            threshold=1,
            sql=query,
            severity="warning",
        )


def _correlation(outputs: Array, targets: Array) -> float:
    """Return the mean rank correlation of the columns; columns without any change are left out."""
    ranks = [np.argsort(np.argsort(values, axis=0), axis=0).astype(float) for values in (outputs, targets)]
    used = [n for n in range(outputs.shape[1]) if np.ptp(outputs[:, n]) > 0 and np.ptp(targets[:, n]) > 0]
    found = [float(np.corrcoef(ranks[0][:, n], ranks[1][:, n])[0, 1]) for n in used]
    return float(np.mean(found)) if found else 0.0
