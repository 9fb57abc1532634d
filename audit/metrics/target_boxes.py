"""Boxes in a target, read by what the target says of itself.

Nothing is guessed. Boxes are a dict with `boxes` and `labels`, as torchvision's detectors take them, or COCO's own list
of annotations. Boxes without a format of their own are x1, y1, x2, y2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from audit.metrics.boxes import Array, Boxes

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
    if crowd is not None and len(crowd) != len(boxes):
        crowd = None
    return Boxes(boxes, classes, crowd=crowd, keypoints=_keypoints(part, len(boxes)), areas=_areas(part, boxes))


def _keypoints(part: Mapping[Any, Any], count: int) -> Array | None:
    """Return keypoints (n, K, 3); those of torchvision's KeyPoints have two numbers each and may have a visibility beside."""
    if "keypoints" not in part:
        return None
    points = _numbers(part["keypoints"]).astype(np.float64)
    if points.ndim == 3 and points.shape[2] == 2:
        seen = _numbers(part["visibility"]) if "visibility" in part else np.full(points.shape[:2], 2.0)
        if seen.shape == points.shape[:2]:
            points = np.concatenate([points, seen[..., None].astype(np.float64)], axis=2)
    if points.size == 0:
        return None
    if points.ndim != 3 or points.shape[0] != count or points.shape[2] != 3:
        raise ValueError(
            f"its target has {count} boxes and keypoints of shape {points.shape}, and not ({count}, K, 3), so it is not graded"
        )
    return points


def _areas(part: Mapping[Any, Any], boxes: Array) -> Array | None:
    """Return the area of each object: as it was given, or as a share of its box."""
    name = next((name for name in ("area_share", "area") if name in part), None)
    found = _numbers(part[name]).astype(np.float64).reshape(-1) if name is not None else None
    if found is None or len(found) != len(boxes):
        return None
    return found if name == "area" else found * (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


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
    crowd = np.array([bool(one.get("iscrowd")) for one in part], dtype=bool)
    points, areas = coco_keypoints(part)
    return Boxes(boxes, classes, crowd=crowd, keypoints=points, areas=areas)


def coco_keypoints(annotations: Sequence[Mapping[str, Any]]) -> tuple[Array | None, Array | None]:
    """Return the keypoints (n, K, 3) and areas of COCO's annotations; None for keypoints that not all of them have."""
    areas = [one.get("area") for one in annotations]
    known = np.array(areas, dtype=np.float64) if all(isinstance(area, (int, float)) for area in areas) else None
    points = [one.get("keypoints") for one in annotations]
    lengths = {len(one) if isinstance(one, (list, tuple)) else -1 for one in points}
    if len(lengths) != 1 or (length := lengths.pop()) <= 0 or length % 3:
        return None, known
    return np.array(points, dtype=np.float64).reshape(len(points), -1, 3), known
