"""Match predicted boxes to targets by COCO's rule.

Boxes are compared within one picture and one class. Predictions are taken from the highest score down; each takes the
free target that it overlaps most, if the overlap (intersection over union) reaches the threshold. A crowd is a target
that stands for many objects: any number of predictions may lie in it, and they count neither as right nor as wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: COCO keeps a threshold of 1 reachable for boxes that are equal but for rounding.
_ALMOST_ONE = 1 - 1e-10


@dataclass(frozen=True, slots=True)
class BoxMatches:
    """The partner of each box at one threshold, by place; -1 for none."""

    predicted: Array
    targets: Array


def overlaps(predicted: Array, targets: Array, crowd: Array | None = None) -> Array:
    """Return the intersection over union (P, T) of boxes x1, y1, x2, y2; with a crowd, over the predicted box alone."""
    first = np.asarray(predicted, dtype=np.float64).reshape(-1, 4)
    second = np.asarray(targets, dtype=np.float64).reshape(-1, 4)
    width = np.minimum(first[:, None, 2], second[None, :, 2]) - np.maximum(first[:, None, 0], second[None, :, 0])
    height = np.minimum(first[:, None, 3], second[None, :, 3]) - np.maximum(first[:, None, 1], second[None, :, 1])
    shared = np.where((width > 0) & (height > 0), width * height, 0.0)
    own = areas(first)[:, None]
    union = own + areas(second)[None, :] - shared
    if crowd is not None and len(second):
        union = np.where(np.asarray(crowd, dtype=bool)[None, :], own, union)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(shared > 0, shared / union, 0.0))


def areas(boxes: Array) -> Array:
    """Return the area of each box x1, y1, x2, y2."""
    boxes = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    return np.asarray((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))


def match_boxes(shared: Array, threshold: float, *, crowd: Array, ignored: Array) -> BoxMatches:
    """Match predictions, best score first, to targets by their overlaps (P, T).

    An ignored target is taken only where no other target is: what matches it is ignored too. Crowds are ignored.
    """
    count, wanted = shared.shape
    found = np.full(count, -1)
    taken = np.full(wanted, -1)
    # Targets that count come first, in their order.
    order = np.argsort(ignored, kind="stable")
    for place in range(count):
        best, reach = -1, min(threshold, _ALMOST_ONE)
        for target in order:
            if taken[target] >= 0 and not crowd[target]:
                continue
            if best >= 0 and not ignored[best] and ignored[target]:
                break
            if shared[place, target] < reach:
                continue
            best, reach = int(target), float(shared[place, target])
        if best >= 0:
            found[place] = best
            taken[best] = place
    return BoxMatches(found, taken)


def match_picture(
    boxes: Array, classes: Array, scores: Array, targets: Array, target_classes: Array, crowd: Array, threshold: float
) -> tuple[BoxMatches, Array]:
    """Match all boxes of one picture, class by class; return the partners and the overlaps (P, T) of all boxes."""
    shared = overlaps(boxes, targets, crowd)
    found, taken = np.full(len(boxes), -1), np.full(len(targets), -1)
    for number in np.unique(classes):
        mine = np.flatnonzero(classes == number)
        mine = mine[np.argsort(-scores[mine], kind="stable")]
        theirs = np.flatnonzero(target_classes == number)
        part = match_boxes(shared[np.ix_(mine, theirs)], threshold, crowd=crowd[theirs], ignored=crowd[theirs])
        hits = part.predicted >= 0
        found[mine[hits]] = theirs[part.predicted[hits]]
        held = part.targets >= 0
        taken[theirs[held]] = mine[part.targets[held]]
    return BoxMatches(found, taken), shared
