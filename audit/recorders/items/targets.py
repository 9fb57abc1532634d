"""Targets of an item that are more than a class number: boxes, masks and measured values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from audit.metrics.boxes import Boxes
from audit.metrics.target_boxes import read_target_boxes

#: A target as it travels to the process that grades.
Target = Boxes | np.ndarray[Any, Any]

#: The target of a picture without objects: torchvision's CocoDetection gives an empty list.
NO_BOXES = Boxes(np.zeros((0, 4)), np.zeros(0, dtype=np.int64))

#: Where the target of one of several graded outputs is in an item or a batch: a key, a position or a function of it.
TargetPicker = str | int | Callable[[Any], Any]


def find_boxes(item: Any, label: Any) -> Boxes | None:
    """Return the target boxes of an item; None if it has none that are certain. Raises ValueError if they do not fit."""
    if _is_class(item, label):
        return None
    if isinstance(label, (list, tuple)) and not label:
        return NO_BOXES
    found = read_target_boxes(label)
    return found if found is not None else read_target_boxes(item)


def _is_class(item: Any, label: Any) -> bool:
    """Return whether an item is a tensor and a class number: then nothing in it is a target of another kind."""
    return type(label) is int and type(item) is tuple and len(item) == 2 and type(item[0]) is torch.Tensor


def find_target(item: Any, label: Any) -> Target | None:
    """Return boxes, or the label itself where it is a mask, a vector or a measured value; None for a class number."""
    if _is_class(item, label):
        return None
    found = find_boxes(item, label)
    if found is not None:
        return found
    if not hasattr(label, "shape") or not hasattr(label, "dtype"):
        return np.asarray(label) if isinstance(label, float) else None
    values = np.asarray(label.detach().cpu() if hasattr(label, "detach") else label)
    is_class = values.size == 1 and not np.issubdtype(values.dtype, np.floating)
    return None if is_class or values.dtype == object else values


def pick_target(data: Any, picker: TargetPicker) -> Any:
    """Return the part of an item or a batch that `picker` names; None if there is none."""
    if callable(picker):
        return picker(data)
    if isinstance(picker, int):
        return data[picker] if isinstance(data, (tuple, list)) and -len(data) <= picker < len(data) else None
    parts = [data, *data] if isinstance(data, (tuple, list)) else [data]
    return next((part[picker] for part in parts if isinstance(part, Mapping) and picker in part), None)


def pick_item_target(item: Any, picker: TargetPicker) -> Any:
    """Return the part of one item as it travels to the process that grades: numbers as an array, others as they are."""
    found = pick_target(item, picker)
    if isinstance(found, torch.Tensor):
        return found.detach().cpu().clone().numpy()
    return np.array(found) if isinstance(found, (bool, int, float, np.generic, np.ndarray)) else found
