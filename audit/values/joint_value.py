"""A picture with its target, as joint transforms take and return them: (picture, target), or a dict that holds both.

A target here is boxes (see metrics/target_boxes.py) or a mask of class numbers as large as the picture. Everything else
beside a picture is not a target, and is not recorded as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from audit import plainjson
from audit.metrics.boxes import Boxes
from audit.metrics.target_boxes import read_target_boxes
from audit.values import dispatch, thumbnail
from audit.values.base import Facts, Preview
from audit.values.overlay import DrawnBox, draw_overlay

Array = np.ndarray[Any, Any]

#: Keys of a dict that holds picture and target.
_PICTURE_KEYS = ("image", "img", "picture", "pixel_values")
_MASK_KEYS = ("mask", "masks", "segmentation", "semantic")
#: A grey picture with more levels beside a coloured one may be a depth map.
_MOST_CLASSES = 64
_BANDS = (1, 3, 4)
#: A longer sequence is not a picture with its target.
_MOST_PARTS = 4


@dataclass(frozen=True, slots=True)
class JointValue:
    """A picture, and the target beside it."""

    picture: Any
    #: Height and width of the picture.
    size: tuple[int, int]
    boxes: Boxes | None = None
    #: The format that the boxes themselves name (XYXY, XYWH…), of torchvision's BoundingBoxes.
    box_format: str | None = None
    mask: Array | None = None


def find_joint(value: Any) -> JointValue | None:
    """Return picture and target of a stage's output; None if it is something else."""
    try:
        if isinstance(value, Mapping):
            picture = next((value[key] for key in _PICTURE_KEYS if key in value), None)
            targets = [value, *(value[key] for key in ("target", "targets", *_MASK_KEYS) if key in value)]
        elif isinstance(value, (tuple, list)) and 2 <= len(value) <= _MOST_PARTS:
            picture, *targets = value
        else:
            return None
        size = picture_size(picture)
        return None if size is None else _with_target(picture, size, targets)
    except Exception:
        return None  # boxes and labels of different number, say, which the item's own target names; or a strange value


def _with_target(picture: Any, size: tuple[int, int], targets: list[Any]) -> JointValue | None:
    for target in targets:
        boxes = read_target_boxes(target)
        if boxes is not None:
            form = getattr(target["boxes"], "format", None) if isinstance(target, Mapping) else None
            return JointValue(picture, size, boxes, getattr(form, "name", None), _mask_in(target, size))
        mask = _as_mask(target, picture, size)
        if mask is not None:
            return JointValue(picture, size, mask=mask)
    return None


def picture_size(picture: Any) -> tuple[int, int] | None:
    """Return (height, width) of a picture, or of an array or tensor that is one; else None."""
    if isinstance(picture, Image.Image):
        return picture.height, picture.width
    shape = tuple(getattr(picture, "shape", ()))
    if len(shape) == 3 and hasattr(picture, "dtype"):
        # An array has its channels last as a rule, a tensor first.
        planar, packed = shape[0] in _BANDS, shape[2] in _BANDS
        if planar and not (packed and isinstance(picture, np.ndarray)):
            return int(shape[1]), int(shape[2])
        if packed:
            return int(shape[0]), int(shape[1])
    return None


def _mask_in(target: Any, size: tuple[int, int]) -> Array | None:
    """Return the masks (n, H, W) of single objects as one mask, in which each object has the number of its class."""
    if not isinstance(target, Mapping) or "masks" not in target:
        return None
    masks, labels = _numbers(target["masks"]), _numbers(target["labels"]).reshape(-1)
    if masks.ndim != 3 or masks.shape != (len(labels), *size):
        return None
    merged = np.zeros(size, np.int64)
    for mask, label in zip(masks, labels, strict=True):
        merged[mask > 0] = label
    return merged


def _as_mask(target: Any, picture: Any, size: tuple[int, int]) -> Array | None:
    if isinstance(target, Image.Image):
        is_grey = target.mode in ("P", "L", "1") and not (isinstance(picture, Image.Image) and picture.mode == "L")
        if not is_grey or (target.height, target.width) != size:
            return None
        mask = np.asarray(target).astype(np.int64)
        return mask if target.mode != "L" or len(np.unique(mask)) <= _MOST_CLASSES else None
    if not hasattr(target, "dtype") or not hasattr(target, "shape"):
        return None
    mask = _numbers(target)
    mask = mask[0] if mask.ndim == 3 and len(mask) == 1 else mask
    is_numbers = np.issubdtype(mask.dtype, np.integer) or mask.dtype == bool
    return mask.astype(np.int64) if is_numbers and mask.shape == size else None


def _numbers(value: Any) -> Array:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def observe_picture(value: Any) -> Facts | None:
    """Return the facts of the picture in a joint value; None for every other value."""
    found = find_joint(value)
    return None if found is None else dispatch.observe(found.picture)


def describe_target(value: Any) -> str | None:
    """Return JSON of the picture's form and of the target's values, as `stage_outputs.target` keeps it; else None."""
    found = find_joint(value)
    if found is None:
        return None
    said: dict[str, Any] = {"height": found.size[0], "width": found.size[1]}
    if found.boxes is not None:
        said["boxes"] = found.boxes.boxes.tolist()
        said["classes"] = found.boxes.classes.tolist()
        if found.box_format is not None:
            said["format"] = found.box_format
    if found.mask is not None:
        numbers, pixels = np.unique(found.mask, return_counts=True)
        said["mask"] = {str(number): int(count) for number, count in zip(numbers.tolist(), pixels, strict=True)}
    return plainjson.dumps(said)


def preview(value: Any) -> Preview | None:
    """Return a small picture with its boxes or its mask drawn over it; None for a value that is not a joint one."""
    found = find_joint(value)
    picture = None if found is None else as_picture(found.picture)
    if found is None or picture is None or 0 in picture.size:
        return None
    factor = thumbnail.SIDE / max(*picture.size, thumbnail.SIDE)
    small = picture.resize((max(1, round(picture.width * factor)), max(1, round(picture.height * factor))))
    if found.boxes is None:
        return thumbnail.of_image(draw_overlay(small, target=found.mask, enlarge=False))
    scale = np.array([small.width / found.size[1], small.height / found.size[0]] * 2)
    boxes: list[DrawnBox] = [
        {"x1": x1, "y1": y1, "x2": x2, "y2": y2} for x1, y1, x2, y2 in (found.boxes.boxes * scale).tolist()
    ]
    return thumbnail.of_image(draw_overlay(small, target=boxes, enlarge=False))


def as_picture(picture: Any) -> Image.Image | None:
    """Return what a picture, array or tensor shows, as L or RGB."""
    if isinstance(picture, Image.Image):
        return thumbnail.to_viewable(picture)
    return thumbnail.as_picture(_numbers(picture))
