"""COCO's mean average precision of boxes and keypoints, equal to that of its reference implementation.

Thresholds of overlap are 0.50, 0.55, … 0.95; precision is read at 101 levels of recall; the 100 boxes with the best
scores count for each picture and class. Small, medium and large are areas below 32², below 96², and above.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from audit.metrics.box_matching import Array, areas, match_boxes, overlaps

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
MOST_BOXES = 100
AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}


@dataclass(frozen=True, slots=True)
class PictureBoxes:
    """The boxes of one picture and one class: predicted ones with their scores, and targets."""

    predicted: Array
    scores: Array
    targets: Array
    crowd: Array
    #: The area of each target, where it is not that of its box.
    areas: Array | None = None
    #: How alike each prediction and each target are (P, T), where it is not the overlap of their boxes.
    similarity: Array | None = None
    #: The area of each prediction, where it is not that of its box.
    predicted_areas: Array | None = None
    #: Targets that count neither as found nor as missed, besides crowds.
    ignored: Array | None = None


@dataclass(frozen=True, slots=True)
class AveragePrecision:
    """Mean average precisions; None where there is no target to find."""

    #: Over all thresholds, at 0.5, at 0.75, and over all thresholds of targets by their size.
    all: float | None
    at_50: float | None
    at_75: float | None
    small: float | None
    medium: float | None
    large: float | None
    #: The share of targets that is found, over all thresholds.
    recall: float | None
    #: Over all thresholds, of each class that has targets.
    classes: dict[int, float] = field(default_factory=dict)


def mean_average_precision(
    classes: dict[int, list[PictureBoxes]], *, most: int = MOST_BOXES, sizes: Sequence[str] = tuple(AREAS)
) -> AveragePrecision:
    """Return the mean average precision of the boxes of each class, a picture at a time in their order.

    `most` predictions count for each picture and class; `sizes` are the names of AREAS to measure.
    """
    tables = {
        name: {number: _evaluate(pictures, AREAS[name], most) for number, pictures in classes.items()} for name in sizes
    }
    everything = {number: found for number, found in tables["all"].items() if found is not None}
    mean = {
        name: _mean(found[0] for found in by_class.values() if found is not None) for name, by_class in tables.items()
    }
    return AveragePrecision(
        mean["all"],
        _mean(precision[0] for precision, _ in everything.values()),
        _mean(precision[5] for precision, _ in everything.values()),
        mean.get("small"),
        mean.get("medium"),
        mean.get("large"),
        _mean(recall for _, recall in everything.values()),
        {number: float(precision.mean()) for number, (precision, _) in sorted(everything.items())},
    )


def _mean(parts: Iterable[Array]) -> float | None:
    found = list(parts)
    return float(np.mean(np.stack(found))) if found else None


def _evaluate(pictures: list[PictureBoxes], limits: tuple[float, float], most: int) -> tuple[Array, Array] | None:
    """Return precision (thresholds, recalls) and recall (thresholds) of one class; None if it has no target."""
    parts = [_match(picture, limits, most) for picture in pictures]
    wanted = sum(count for *_, count in parts)
    if not wanted:
        return None
    scores = np.concatenate([part[0] for part in parts])
    order = np.argsort(-scores, kind="stable")
    matched = np.concatenate([part[1] for part in parts], axis=1)[:, order]
    ignored = np.concatenate([part[2] for part in parts], axis=1)[:, order]
    right = np.cumsum(matched & ~ignored, axis=1).astype(float)
    wrong = np.cumsum(~matched & ~ignored, axis=1).astype(float)
    precision, recall = np.zeros((len(THRESHOLDS), len(RECALLS))), np.zeros(len(THRESHOLDS))
    for number in range(len(THRESHOLDS)):
        if not len(order):
            continue
        reached = right[number] / wanted
        exact = right[number] / (wrong[number] + right[number] + np.spacing(1))
        # The best precision at this recall or a higher one.
        exact = np.maximum.accumulate(exact[::-1])[::-1]
        at = np.searchsorted(reached, RECALLS, side="left")
        precision[number] = np.where(at < len(exact), exact[np.minimum(at, len(exact) - 1)], 0.0)
        recall[number] = reached[-1]
    return precision, recall


def _match(picture: PictureBoxes, limits: tuple[float, float], most: int) -> tuple[Array, Array, Array, int]:
    """Return scores (P), matched and ignored (thresholds, P) of one picture's boxes, and how many targets count."""
    order = np.argsort(-picture.scores, kind="stable")[:most]
    boxes = picture.predicted.reshape(-1, 4)[order]
    sizes = areas(picture.targets) if picture.areas is None else picture.areas
    crowd = picture.crowd.astype(bool)
    ignored = crowd | (sizes < limits[0]) | (sizes > limits[1])
    if picture.ignored is not None:
        ignored |= picture.ignored
    shared = overlaps(boxes, picture.targets, crowd) if picture.similarity is None else picture.similarity[order]
    own = areas(boxes) if picture.predicted_areas is None else picture.predicted_areas[order]
    outside = (own < limits[0]) | (own > limits[1])
    matched = np.zeros((len(THRESHOLDS), len(order)), dtype=bool)
    left_out = np.zeros_like(matched)
    for number, threshold in enumerate(THRESHOLDS):
        found = match_boxes(shared, float(threshold), crowd=crowd, ignored=ignored).predicted
        matched[number] = found >= 0
        taken = np.flatnonzero(matched[number])
        left_out[number, taken] = ignored[found[taken]]
        left_out[number] |= ~matched[number] & outside
    return picture.scores[order], matched, left_out, int((~ignored).sum())
