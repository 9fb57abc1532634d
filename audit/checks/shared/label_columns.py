"""Whether the targets of several labels fit the predictions only after a change: two labels exchanged, one inverted, rows shifted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from audit.checks.base import Finding, Skip
from audit.checks.context import Context
from audit.checks.shared.significance import normal_tails
from audit.class_names import show_class

Array = np.ndarray[Any, Any]
#: So many samples are looked at, and so many are needed.
_MOST, _FEWEST = 5_000, 30
#: The correlation of predictions and targets that shows that both are of one label; unchanged, they have less than half of it.
_SURE = 0.5
#: The probability of any false finding.
_LEVEL = 0.001


def find_changed_columns(context: Context, predictions: str, where: str = "") -> Iterable[Finding]:
    """Report labels whose targets fit the predictions only if they are exchanged, inverted or moved by one row."""
    query = (
        f"SELECT epoch, batch, position, index, output, target FROM {predictions} WHERE len(target) > 1 "
        f"AND len(target) = len(output) ORDER BY epoch, batch, position, index LIMIT {_MOST}"
    )
    scores, targets = _read(context, query)
    if len(targets) < _FEWEST:
        raise Skip(f"{len(targets)} samples with several labels are graded; at least {_FEWEST} are needed")
    shifted = [(step, _own_fits(scores, np.roll(targets, step, 0))) for step in (1, -1)]
    own = _own_fits(scores, targets)
    for step, fits in shifted:
        if (
            np.mean(fits) >= _SURE
            and np.mean(own) < np.mean(fits) / 2
            and _is_sure(float(np.mean(fits)), len(targets), 2)
        ):
            side = "before" if step > 0 else "after"
            yield _make_finding(
                f"Targets are shifted by one row{where}: the predictions fit the labels of the sample {side} "
                f"(correlation {np.mean(fits):.2f}), and their own less (correlation {np.mean(own):.2f}).",
                float(np.mean(fits)), float(np.mean(own)), query,
            )  # fmt: skip
            return
    yield from _find_columns(context, _correlations(scores, targets), len(targets), where, query)


def _find_columns(context: Context, fits: Array, count: int, where: str, query: str) -> Iterable[Finding]:
    classes, size = context.run.classes or [], len(fits)
    for one in range(size):
        if fits[one, one] <= -_SURE and _is_sure(fits[one, one], count, size):
            yield _make_finding(
                f"The label {show_class(classes, one)} is inverted{where}: it is 1 where the model predicts 0 (correlation {fits[one, one]:.2f}).",
                float(fits[one, one]), _SURE, query,
            )  # fmt: skip
        for other in range(one + 1, size):
            least = min(fits[one, other], fits[other, one])
            if (
                least >= _SURE
                and max(fits[one, one], fits[other, other]) < least / 2
                and _is_sure(least, count, size * size)
            ):
                yield _make_finding(
                    f"The labels {show_class(classes, one)} and {show_class(classes, other)} are exchanged{where}: what is predicted as one is "
                    f"labelled as the other (correlation {least:.2f}, and {max(fits[one, one], fits[other, other]):.2f} as they are).",
                    float(least), _SURE, query,
                )  # fmt: skip


def _make_finding(message: str, value: float, threshold: float, query: str) -> Finding:
    return Finding(message, value=value, threshold=threshold, sql=query)


def _read(context: Context, query: str) -> tuple[Array, Array]:
    """Return the scores and the targets, one row for each sample; those of another width than the first are left out."""
    rows = context.rows(query)
    width = len(rows[0]["target"]) if rows else 0
    kept = [row for row in rows if len(row["target"]) == width]
    return (
        np.array([row["output"] for row in kept], dtype=np.float64).reshape(len(kept), width),
        np.array([row["target"] for row in kept], dtype=np.float64).reshape(len(kept), width),
    )


def _correlations(scores: Array, targets: Array) -> Array:
    """Return the correlation of each label's predictions with each label's targets; 0 where one of them never changes."""
    usable = np.isfinite(scores).all(1) & np.isfinite(targets).all(1)
    predicted, wanted = (values[usable] > 0.5 for values in (scores, targets))
    predicted, wanted = (values - values.mean(0) for values in (predicted.astype(float), wanted.astype(float)))
    sizes = np.sqrt((predicted**2).sum(0))[:, None] * np.sqrt((wanted**2).sum(0))[None]
    return np.asarray(np.divide(predicted.T @ wanted, sizes, out=np.zeros_like(sizes), where=sizes > 0))


def _own_fits(scores: Array, targets: Array) -> Array:
    return np.asarray(np.diag(_correlations(scores, targets)))


def _is_sure(correlation: float, count: int, tries: int) -> bool:
    return normal_tails(correlation * count**0.5) * tries < _LEVEL
