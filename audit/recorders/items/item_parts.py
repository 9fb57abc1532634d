"""What in a dataset's item is the model's input, and what is the label."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from audit.errors import UsageError
from audit.recorders.calls.data_values import is_picture, is_text

LABEL_KEYS = ("label", "labels", "target", "targets", "y", "class")
#: Where an item without a label may have a mask of class numbers, and of which types that is.
MASK_KEYS = ("mask", "masks", "segmentation", "semantic")
_MASK_TYPES = ("uint8", "int16", "int32", "int64")
INPUT_KEYS = ("image", "img", "pixel_values", "x", "input", "inputs", "text", "input_ids", "data")


def split_item(item: Any) -> tuple[Any, Any]:
    """Return (input, label) of one item; the label is None when the item has none, or when its place is not certain."""
    if type(item) is tuple and len(item) == 2 and type(item[0]) is torch.Tensor and item[0].ndim:
        return item  # nearly always
    if isinstance(item, Mapping):
        label = find_named_label(item)
        named = next((item[key] for key in INPUT_KEYS if key in item), None)
        return (item if named is None else named), label
    if isinstance(item, (tuple, list)) and len(item) >= 2:
        place = input_place(item)
        others = [*item[:place], *item[place + 1 :]]
        # Of several whole numbers, as in (x, index, y), nothing says which is the label.
        is_certain = len(item) == 2 or sum(label_number(part) is not None for part in others) < 2
        if not is_certain or place + 1 >= len(item):
            return item[place], None
        # A second picture of the same form, as in (anchor, positive, label), is an input too.
        is_input = len(item) > 2 and _are_alike(item[place], item[place + 1])
        return item[place], None if is_input else item[place + 1]
    if isinstance(item, (tuple, list)) and len(item) == 1:
        return item[0], None
    if (fields := fields_of(item)) is not None:
        value, label = split_item(fields)
        return (item if value is fields else value), label
    return item, None


def find_named_label(parts: Mapping[Any, Any], *, stacked: bool = False) -> Any:
    """Return the entry of an item or a batch that is named like a label, else a mask of class numbers; None if it has none."""
    key = next((key for key in LABEL_KEYS if key in parts), None)
    if key is None:
        key = next((key for key in MASK_KEYS if key in parts and _is_mask(parts[key], stacked)), None)
    return None if key is None else parts[key]


def _is_mask(part: Any, stacked: bool) -> bool:
    """Return whether a part is (H, W) or (1, H, W) whole numbers: other masks say which tokens or pixels count."""
    axes = _axes_of(part) - int(stacked)
    is_flat = axes == 2 or (axes == 3 and part.shape[int(stacked)] == 1)
    return is_flat and str(part.dtype).rpartition(".")[2] in _MASK_TYPES


def input_part(data: Any) -> Any:
    """Return the part of a collated batch that `split_item` takes for the input of each item."""
    if isinstance(data, Mapping):
        return next((data[key] for key in INPUT_KEYS if key in data), data)
    if isinstance(data, (tuple, list)) and data:
        return data[input_place(data, stacked=True)] if len(data) > 1 else data[0]
    return data


def further_inputs(item: Any) -> Any:
    """Return the part of an item beside its input that has the same form, as in (anchor, positive, label); None if none has."""
    if not isinstance(item, (tuple, list)) or len(item) < 3:
        return None
    place = input_place(item)
    second = item[place + 1] if place + 1 < len(item) else None
    if second is None or not _are_alike(item[place], second):
        return None
    # All that follow, as in (anchor, positive, negative).
    return [part for part in item[place + 1 :] if _are_alike(item[place], part)]


def fields_of(item: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass's instance; None for anything else."""
    if not hasattr(type(item), "__dataclass_fields__"):
        return None
    return {name: getattr(item, name, None) for name in type(item).__dataclass_fields__}


def _are_alike(one: Any, other: Any) -> bool:
    """Return whether two parts of an item are pictures, tensors or arrays of the same form."""
    if is_picture(one) and is_picture(other):
        return bool(one.size == other.size and one.mode == other.mode)
    if min(_axes_of(one), _axes_of(other)) < 1:
        return False
    return bool(one.shape == other.shape and one.dtype == other.dtype)


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
    if isinstance(item, (tuple, list)):
        return [item, *item]
    return [item, *(fields_of(item) or {}).values()]


def label_number(label: Any) -> int | None:
    """Return a label as a class number; None for what is not a single integer (boxes, masks, soft labels, measurements)."""
    if type(label) is int:
        return label
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
        raise UsageError(f"{what} cannot be {value!r}.", hint=f"Give a whole number, {least} or more.")
    return number
