"""Targets of an item that are more than a class number: boxes, masks and measured values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from audit.metrics.boxes import Boxes
from audit.metrics.target_boxes import read_target_boxes

#: A target as it travels to the process that grades.
Target = Boxes | np.ndarray[Any, Any]


def find_boxes(item: Any, label: Any) -> Boxes | None:
    """Return the target boxes of an item; None if it has none that are certain. Raises ValueError if they do not fit."""
    if _is_class(item, label):
        return None
    found = read_target_boxes(label)
    return found if found is not None else read_target_boxes(item)


def _is_class(item: Any, label: Any) -> bool:
    """Whether an item is a tensor and a class number: then nothing in it is a target of another kind."""
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
