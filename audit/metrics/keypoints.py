"""How well the keypoints of an object were found: COCO's object keypoint similarity (OKS)."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: How far people differ when they mark each of COCO's 17 points of a person, as a share of the object's size.
COCO_SIGMAS = np.array(
    [0.26, 0.25, 0.25, 0.35, 0.35, 0.79, 0.79, 0.72, 0.72, 0.62, 0.62, 1.07, 1.07, 0.87, 0.87, 0.89, 0.89]
) / 10.0  # fmt: skip


def keypoint_similarity(predicted: Array, target: Array, box: Array, area: float | None) -> float | None:
    """Return the similarity of the points (K, 3) of one object; None unless they are COCO's 17 points of a person.

    `box` and `area` are those of the target; without an area, that of the box. Points of the target with visibility 0
    are left out. A target without any visible point is compared with the surroundings of its box, as COCO does.
    """
    if predicted.shape != target.shape or len(target) != len(COCO_SIGMAS):
        return None
    size = float((box[2] - box[0]) * (box[3] - box[1])) if area is None else area
    if not np.isfinite([size, *box]).all() or not np.isfinite(predicted[:, :2]).all() or not np.isfinite(target).all():
        return None
    visible = target[:, 2] > 0
    if visible.any():
        away = predicted[visible, :2] - target[visible, :2]
        sigmas = COCO_SIGMAS[visible]
    else:
        extent = box[2:] - box[:2]
        low, high = box[:2] - extent, box[2:] + extent
        away = np.maximum(0.0, low - predicted[:, :2]) + np.maximum(0.0, predicted[:, :2] - high)
        sigmas = COCO_SIGMAS
    errors = (away**2).sum(axis=1) / (2 * sigmas) ** 2 / (size + np.spacing(1)) / 2
    return float(np.exp(-errors).mean())
