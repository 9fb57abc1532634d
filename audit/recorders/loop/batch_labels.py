"""The class numbers that a collated batch has for its samples.

A collate function may sort or shuffle the inputs and forget the labels. What a batch has for a sample is known only where the
content of its inputs shows which row is which sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from audit.recorders.items.collated_values import batch_input
from audit.recorders.items.item_parts import find_named_label, input_place, label_number
from audit.recorders.loop.item_columns import as_numbers

#: Fewer classes than this cannot show whether a label was smoothed or mixed.
_FEWEST_SMOOTHED = 3
#: So many numbers of a row show whether it is another one than the others.
_MOST_COMPARED = 512


def read_batch_labels(
    data: Any, items: Sequence[Any], own: Sequence[int | None], places: Sequence[int] | None, finder: Any
) -> list[int | None] | None:
    """Return the class number that a batch has for each of its items, by place; None where nothing is certain.

    `own` are the labels of the items themselves, `places` the items of the rows of the batch's input, and `finder` says
    where the user finds the label in an item.
    """
    if places is None or len(set(places)) < len(places) or len(own) != len(items):
        return None
    numbers = _class_numbers(_find_part(data, items, finder), len(places))
    if numbers is None or all(label is None for label in own):
        return None
    found: list[int | None] = [None] * len(own)
    for place, number in zip(places, numbers, strict=True):
        found[place] = number
    if any(None not in (one, other) and one != other for one, other in zip(found, own, strict=True)):
        for place in _find_alike(data, places):
            found[place] = None
    return found


def labels_part(data: Any) -> Any:
    """Return the part of a collated batch that holds the labels or targets."""
    if isinstance(data, Mapping):
        return find_named_label(data, stacked=True)
    if not isinstance(data, (tuple, list)) or len(data) < 2:
        return None
    return next(iter(data[input_place(data, stacked=True) + 1 :]), None)


def are_numbers(part: Any, count: int) -> bool:
    """Return whether a part of a batch has one whole number for each sample."""
    is_column = isinstance(part, torch.Tensor) and part.dim() == 1 and part.shape[0] == count
    return is_column and not part.is_floating_point()


def _find_part(data: Any, items: Sequence[Any], finder: Any) -> Any:
    """Return the part of a batch that has the labels; None where that is not certain."""
    if callable(finder):
        return None
    if isinstance(finder, str):
        return data.get(finder) if isinstance(data, Mapping) else None
    if isinstance(finder, int):
        is_like = isinstance(data, (tuple, list)) and isinstance(items[0], (tuple, list)) and len(data) == len(items[0])
        return data[finder] if is_like and -len(data) <= finder < len(data) else None
    found = labels_part(data)
    parts = data if isinstance(data, (tuple, list)) else ()
    # Of several whole numbers, as in (x, lengths, y), nothing says which is the label.
    return None if any(part is not found and are_numbers(part, len(items)) for part in parts) else found


def _class_numbers(part: Any, count: int) -> list[int | None] | None:
    """Return the class number of each row of labels; None where they are of another kind."""
    if isinstance(part, (tuple, list)) and len(part) == count:
        listed = [label_number(one) for one in part]
        return None if None in listed else listed
    numbers = as_numbers(part)
    if numbers is None or numbers.dim() not in (1, 2) or len(numbers) != count or not count:
        return None
    if numbers.dim() == 2 and numbers.shape[1] > 1:
        return _classes_of_rows(numbers.to(torch.float64))
    flat = numbers.reshape(-1)
    if flat.is_floating_point() and not bool((flat == flat.round()).all()):
        return None
    return [int(number) for number in flat.tolist()]


def _classes_of_rows(rows: torch.Tensor) -> list[int | None]:
    """Return the class of each row that is one-hot, or smoothed: one number for the class, and another for all others."""
    best = rows.argmax(1)
    others = rows.scatter(1, best[:, None], rows.amin(1, keepdim=True))
    is_even = others.amax(1) == rows.amin(1)
    if rows.shape[1] < _FEWEST_SMOOTHED:
        is_even &= ((rows == 0) | (rows == 1)).all(1)
    is_class = is_even & (rows.amax(1) > rows.amin(1))
    return [number if known else None for number, known in zip(best.tolist(), is_class.tolist(), strict=True)]


def _find_alike(data: Any, places: Sequence[int]) -> Iterator[int]:
    """Yield the places whose row of the input looks like another row: which sample such a row is is not certain."""
    rows = _input_rows(batch_input(data), len(places))
    contents = [None if rows is None else _content_of(row) for row in rows or places]
    seen = Counter(contents)
    for place, content in zip(places, contents, strict=True):
        if content is None or seen[content] > 1:
            yield place


def _input_rows(value: Any, count: int) -> list[Any] | None:
    if isinstance(value, Mapping):
        return next((rows for part in value.values() if (rows := _input_rows(part, count)) is not None), None)
    if isinstance(value, torch.Tensor):
        axis = next((axis for axis in range(min(value.dim(), 2)) if value.shape[axis] == count), None)
        return None if axis is None else list(value.unbind(axis))
    return list(value) if isinstance(value, (tuple, list)) and len(value) == count else None


def _content_of(row: Any) -> tuple[Any, ...] | None:
    """Return some numbers of a row, evenly chosen: rows that differ in them are different."""
    numbers = as_numbers(row)
    if numbers is None:
        return None
    flat = numbers.reshape(-1)
    chosen = flat[:: max(1, len(flat) // _MOST_COMPARED)].contiguous()
    return tuple(numbers.shape), chosen.view(torch.uint8).numpy().tobytes()
