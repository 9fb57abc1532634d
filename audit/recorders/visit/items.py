"""What in a dataset's item is the model's input, and what is the label."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from audit.errors import UsageError

LABEL_KEYS = ("label", "labels", "target", "targets", "y", "class")
INPUT_KEYS = ("image", "img", "pixel_values", "x", "input", "inputs", "text", "input_ids", "data")


def split_item(item: Any) -> tuple[Any, Any]:
    """Return (input, label) of one item; the label is None when the item has none, or when its place is not certain."""
    if isinstance(item, Mapping):
        label = next((item[key] for key in LABEL_KEYS if key in item), None)
        named = next((item[key] for key in INPUT_KEYS if key in item), None)
        return (item if named is None else named), label
    if isinstance(item, (tuple, list)) and len(item) >= 2:
        # Of several whole numbers, as in (x, index, y), nothing says which is the label.
        numbers = [part for part in item[1:] if label_number(part) is not None]
        return item[0], item[1] if len(item) == 2 or len(numbers) < 2 else None
    if isinstance(item, (tuple, list)) and len(item) == 1:
        return item[0], None
    return item, None


def parts_of(item: Any) -> list[Any]:
    """Return what an item is made of. A mapping is not a part of itself: the model is given an entry of it."""
    if isinstance(item, Mapping):
        return list(item.values())
    return [item, *item] if isinstance(item, (tuple, list)) else [item]


def label_number(label: Any) -> int | None:
    """Return a label as a class number; None for what is not a single integer (boxes, masks, soft labels, measurements)."""
    if label is None or isinstance(label, (str, bytes)):
        return None
    try:
        if hasattr(label, "numel") and label.numel() != 1:
            return None
        if hasattr(label, "size") and not callable(label.size) and label.size != 1:
            return None
        value = label.item() if hasattr(label, "item") else label
        # 3.0 may be a class or a measurement: only an integer is certainly a class.
        return operator.index(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None


def whole_number(value: Any, what: str, *, least: int = 0) -> int:
    """Return what a user gave as a whole number; raise an error that names it where it is not one."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise UsageError(f"{what} is {value!r}.", hint=f"Give a whole number, {least} or more.")
    return number
