"""What in a dataset's item is the model's input, and what is the label."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from audit.errors import UsageError
from audit.recorders.calls.data_values import is_picture, is_text

LABEL_KEYS = ("label", "labels", "target", "targets", "y", "class")
INPUT_KEYS = ("image", "img", "pixel_values", "x", "input", "inputs", "text", "input_ids", "data")


def split_item(item: Any) -> tuple[Any, Any]:
    """Return (input, label) of one item; the label is None when the item has none, or when its place is not certain."""
    if isinstance(item, Mapping):
        label = next((item[key] for key in LABEL_KEYS if key in item), None)
        named = next((item[key] for key in INPUT_KEYS if key in item), None)
        return (item if named is None else named), label
    if isinstance(item, (tuple, list)) and len(item) >= 2:
        place = input_place(item)
        others = [*item[:place], *item[place + 1 :]]
        # Of several whole numbers, as in (x, index, y), nothing says which is the label.
        is_certain = len(item) == 2 or sum(label_number(part) is not None for part in others) < 2
        return item[place], item[place + 1] if is_certain and place + 1 < len(item) else None
    if isinstance(item, (tuple, list)) and len(item) == 1:
        return item[0], None
    return item, None


def input_place(parts: Sequence[Any], *, stacked: bool = False) -> int:
    """Return which part of an item is the model's input: the first, unless that is a number or a name before a picture.

    `stacked` says that the parts are those of a batch, with one more axis each.
    """
    first = parts[0]
    axes = int(stacked)
    is_name = isinstance(first, str) and not is_text(first)
    is_number = isinstance(first, int) or _axes_of(first) == axes
    if stacked and isinstance(first, (tuple, list)):
        is_name = bool(first) and all(isinstance(one, str) and not is_text(one) for one in first)
    if not (is_name or is_number):
        return 0
    # A vector may as well be the target of a number; among three parts or more the number is an index.
    least = axes + (1 if len(parts) > 2 and is_number else 2)
    found = (place for place, part in enumerate(parts) if is_picture(part) or _axes_of(part) >= least)
    return next(found, 0)


def _axes_of(part: Any) -> int:
    """Return how many axes an array has; -1 for anything else, also for an object whose attributes raise."""
    try:
        axes = getattr(part, "ndim", None) if hasattr(part, "dtype") else None
    except Exception:
        return -1
    return axes if isinstance(axes, int) else -1


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
