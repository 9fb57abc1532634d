"""What a collated batch holds of each sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from audit.recorders.envelope import TensorLayout
from audit.recorders.items.item_parts import input_place, split_item

#: Stands for a sample that the collate function left out.
LEFT_OUT_SAMPLE = object()
#: Returns which samples a tensor or an array is made of; None where nothing proves it.
FindLayout = Callable[[Any], TensorLayout | None]


def find_collated_rows(data: Any, items: Sequence[Any], find: FindLayout) -> list[Any] | None:
    """Return what each item's input became in a batch; None where that is not certain."""
    inputs = [split_item(item)[0] for item in items]
    listed = [split_item(item)[0] for item in data] if isinstance(data, (tuple, list)) else None
    own = {id(value) for value in inputs}
    if listed and all(id(value) in own for value in listed):
        # A list of the items themselves. With one item it could be taken for a batch of that form.
        return _rows_in(listed, inputs, find)
    for value in (batch_input(data), listed):
        if value is not None and (rows := _rows_in(value, inputs, find)) is not None:
            return rows
    return None


def are_the_items(rows: Sequence[Any], items: Sequence[Any]) -> bool:
    """Return whether the rows are the items' inputs themselves, only arranged in another way."""
    inputs = (split_item(item)[0] for item in items)
    return all(row is LEFT_OUT_SAMPLE or row is value for row, value in zip(rows, inputs, strict=True))


def batch_input(data: Any) -> Any:
    """Return the part of a batch that is the model's input."""
    if isinstance(data, Mapping):
        return split_item(data)[0]
    if not isinstance(data, (tuple, list)) or not data:
        return data
    part = data[input_place(data, stacked=True)]
    # A mapping of all that the items hold, with something beside it.
    return split_item(part)[0] if isinstance(part, Mapping) else part


def _rows_in(value: Any, inputs: list[Any], find: FindLayout) -> list[Any] | None:
    if isinstance(value, torch.Tensor):
        return _tensor_rows(value, inputs, find(value))
    if isinstance(value, Mapping):
        return _mapping_rows(value, inputs, find)
    if isinstance(value, (tuple, list)) and 0 < len(value) <= len(inputs):
        return _list_rows(value, inputs, find)
    return None


def _tensor_rows(value: torch.Tensor, inputs: list[Any], layout: TensorLayout | None) -> list[Any] | None:
    if layout is None:
        return None
    if layout.axis is None or len(set(layout.places)) < len(layout.places):
        # One behind the other, or several views: the values themselves are as they were.
        return inputs if set(layout.places) == set(range(len(inputs))) else None
    rows: list[Any] = [LEFT_OUT_SAMPLE] * len(inputs)
    for place, row in zip(layout.places, value.unbind(layout.axis), strict=True):
        rows[place] = row
    return rows


def _mapping_rows(value: Mapping[Any, Any], inputs: list[Any], find: FindLayout) -> list[Any] | None:
    parts = {key: _rows_in(part, [_part_of(own, key) for own in inputs], find) for key, part in value.items()}
    rows: list[Any] = []
    for place in range(len(inputs)):
        own = {key: found[place] for key, found in parts.items() if found is not None}
        if len(own) < len(parts) or not own:
            return None
        rows.append(LEFT_OUT_SAMPLE if any(one is LEFT_OUT_SAMPLE for one in own.values()) else own)
    return rows


def _part_of(value: Any, key: Any) -> Any:
    return value[key] if isinstance(value, Mapping) and key in value else value


def _list_rows(value: Sequence[Any], inputs: list[Any], find: FindLayout) -> list[Any] | None:
    """Return the rows of a list in which each entry is one sample."""
    rows: list[Any] = [LEFT_OUT_SAMPLE] * len(inputs)
    for entry in value:
        place = next((n for n, own in enumerate(inputs) if own is entry and rows[n] is LEFT_OUT_SAMPLE), None)
        if place is None:
            layout = find(entry)
            place = layout.places[0] if layout is not None and len(layout.places) == 1 else None
        if place is None or rows[place] is not LEFT_OUT_SAMPLE:
            return None
        rows[place] = entry
    return rows
