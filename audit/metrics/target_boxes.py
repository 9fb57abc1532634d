"""Boxes in a target, read by what the target says of itself.

Nothing is guessed. Boxes are a dict with `boxes` and `labels`, as torchvision's detectors take them, or COCO's own list
of annotations. Boxes without a format of their own are x1, y1, x2, y2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from audit.metrics.boxes import Boxes

_CROWD_KEYS = ("iscrowd", "crowd")


def read_target_boxes(part: Any) -> Boxes | None:
    """Return the boxes of a target; None if it has none that are certain. Raises ValueError if they do not fit."""
    if isinstance(part, Mapping) and "boxes" in part and "labels" in part:
        return _from_mapping(part)
    return _from_coco(part) if _is_coco(part) else None


def _from_mapping(part: Mapping[Any, Any]) -> Boxes:
    boxes, classes = _corners(part["boxes"]), _numbers(part["labels"]).astype(np.int64).reshape(-1)
    if len(boxes) != len(classes):
        raise ValueError(f"its target has {len(boxes)} boxes and {len(classes)} labels, so it is not graded")
    named = next((part[key] for key in _CROWD_KEYS if key in part), None)
    crowd = None if named is None else _numbers(named).astype(bool).reshape(-1)
    return Boxes(boxes, classes, crowd=crowd if crowd is not None and len(crowd) == len(boxes) else None)


def _numbers(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _corners(value: Any) -> np.ndarray[Any, Any]:
    """Return boxes as x1, y1, x2, y2, by their own format where they have one (torchvision's BoundingBoxes)."""
    boxes = _numbers(value).astype(np.float64)
    if boxes.size == 0:
        return np.zeros((0, 4))
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"its target boxes have the shape {boxes.shape}, and not (n, 4), so it is not graded")
    form = getattr(getattr(value, "format", None), "name", "XYXY")
    if form == "XYXY":
        return boxes
    if form == "XYWH":
        return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    if form == "CXCYWH":
        half = boxes[:, 2:] / 2
        return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    raise ValueError(f"its target boxes have the format {form}, which is not compared with predicted boxes")


def _is_coco(part: Any) -> bool:
    """Return whether it is a list of COCO's annotations, as torchvision's CocoDetection gives it."""
    if not isinstance(part, (list, tuple)) or not part:
        return False
    return all(isinstance(one, Mapping) and "bbox" in one and "category_id" in one for one in part)


def _from_coco(part: Any) -> Boxes:
    boxes = np.array([one["bbox"] for one in part], dtype=np.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    classes = np.array([one["category_id"] for one in part], dtype=np.int64)
    return Boxes(boxes, classes, crowd=np.array([bool(one.get("iscrowd")) for one in part], dtype=bool))
