"""Precision-recall and ROC curves of one class against the others, from the recorded probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from audit.lineage.queries.overview import of_split
from audit.records import Run
from audit.store.read.reader import Reader

#: A chart cannot show more.
_MOST_POINTS = 300

_SCORES = """
    SELECT score, count(*) FILTER (positive) AS positives, count(*) FILTER (NOT positive) AS negatives FROM (
        SELECT probabilities[{place}] AS score, {positive} AS positive FROM graded_predictions
        WHERE run_id = ? AND epoch = ?{of}
    ) WHERE isfinite(score) AND positive IS NOT NULL GROUP BY score ORDER BY score DESC
"""


@dataclass(frozen=True, slots=True)
class ClassCurve:
    """Precision, recall and false positive rate of one class at thresholds on its probability. Areas are over all thresholds, the points are fewer."""

    number: int
    positives: int
    negatives: int
    average_precision: float | None
    roc_auc: float | None
    thresholds: list[float]
    precision: list[float]
    recall: list[float]
    false_positive_rate: list[float]


def class_curve(reader: Reader, run: Run, epoch: int, number: int, split: str | None = None) -> ClassCurve:
    """Return the curves of one class: its samples against all others, of one epoch or of one split of it."""
    is_positive = f"label = {int(number)}" if run.task != "multilabel" else f"target[{int(number) + 1}] > 0.5"
    query = _SCORES.format(place=int(number) + 1, positive=is_positive, of=of_split(run, epoch, split))
    table = reader.sql(query, parameters=[run.run_id, epoch]).arrow()
    scores, positives, negatives = (table.column(name).to_numpy() for name in ("score", "positives", "negatives"))
    return curve_of(number, scores, positives, negatives)


def labels_by_recall(reader: Reader, run: Run, epoch: int) -> dict[int, str]:
    """Return the labels of a model that judges each by itself, with their names, those with the lowest recall first."""
    query = (
        "SELECT class, coalesce(class_name, class::VARCHAR) FROM per_label WHERE run_id = ? AND epoch = ? "
        "ORDER BY recall NULLS LAST, class"
    )
    return dict(reader.sql(query, parameters=[run.run_id, epoch]).fetchall())


def curve_of(
    number: int, scores: npt.NDArray[Any], positives: npt.NDArray[Any], negatives: npt.NDArray[Any]
) -> ClassCurve:
    """Return the curves of counts by score, the highest score first."""
    right, wrong = np.cumsum(positives, dtype=np.int64), np.cumsum(negatives, dtype=np.int64)
    total, others = (int(right[-1]), int(wrong[-1])) if len(scores) else (0, 0)
    if not total:
        return ClassCurve(number, total, others, None, None, [], [], [], [])
    precision, recall = right / (right + wrong), right / total
    average = float(np.sum(np.diff(recall, prepend=0.0) * precision))
    rate = wrong / others if others else np.zeros(len(wrong))
    area = float(np.trapezoid(np.concatenate([[0.0], recall]), np.concatenate([[0.0], rate]))) if others else None
    shown = np.unique(np.linspace(0, len(scores) - 1, min(_MOST_POINTS, len(scores))).round().astype(int))
    points = [column[shown].astype(float).tolist() for column in (scores, precision, recall, rate)]
    return ClassCurve(number, total, others, average, area, *points)
