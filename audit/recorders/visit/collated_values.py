"""Which part of a collated batch is which sample.

A collate function may pad, sort or drop samples, so the place in the batch alone proves nothing. A row is a sample's if it
is that very object, or holds its content in a corner with nothing but padding around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from audit.recorders.visit.items import input_place, split_item

#: Stands for a sample that the collate function left out.
LEFT_OUT = object()
_MOST_COMPARED = 256


def collated_rows(data: Any, items: Sequence[Any], *, keeps_places: bool) -> list[Any] | None:
    """Return what each item's input became in a batch; None where that is not certain.

    `keeps_places` says that somebody vouches for it: row n is sample n unless the content says otherwise.
    """
    inputs = [split_item(item)[0] for item in items]
    count = len(items)
    batched = [rows for rows in _splits(batch_input(data), count) if rows]
    listed = [split_item(item)[0] for item in data] if isinstance(data, (tuple, list)) else []
    for rows in (listed, *batched):
        if len(rows) == count and all(map(_holds, rows, inputs)):
            return rows
    for rows in (listed, *batched):
        if rows and (found := _find_order(rows, inputs)) is not None:
            return found
    if keeps_places:
        return next((rows for rows in batched if len(rows) == count), None)
    return None


def are_the_items(rows: Sequence[Any], items: Sequence[Any]) -> bool:
    """Return whether the rows are the items' inputs themselves, only arranged in another way."""
    return all(row is split_item(item)[0] for row, item in zip(rows, items, strict=True))


def batch_input(data: Any) -> Any:
    """Return the part of a batch that is the model's input."""
    if isinstance(data, Mapping):
        return split_item(data)[0]
    is_tuple = isinstance(data, (tuple, list)) and len(data) > 0
    return data[input_place(data, stacked=True)] if is_tuple else data


def _splits(value: Any, count: int) -> list[list[Any]]:
    """Return the ways in which a batch falls into samples."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_nested:
            return []
        axes = [axis for axis in range(min(value.dim(), 2)) if axis == 0 or value.shape[axis] == count]
        return [list(value.unbind(axis)) for axis in axes]
    if isinstance(value, Mapping):
        parts = {key: rows for key, part in value.items() for rows in _splits(part, count)[:1] if len(rows) == count}
        return (
            [[{key: rows[n] for key, rows in parts.items()} for n in range(count)]] if len(parts) == len(value) else []
        )
    return [list(value)] if hasattr(value, "__len__") and hasattr(value, "__getitem__") else []


def _find_order(rows: list[Any], inputs: list[Any]) -> list[Any] | None:
    """Return the row of each sample, where each row holds the content of exactly one of them."""
    if len(rows) > len(inputs) or len(inputs) > _MOST_COMPARED:
        return None
    found: list[Any] = [LEFT_OUT] * len(inputs)
    for row in rows:
        places = [place for place, value in enumerate(inputs) if found[place] is LEFT_OUT and _holds(row, value)]
        if len(places) != 1:
            return None
        found[places[0]] = row
    return found


def _holds(row: Any, value: Any) -> bool:
    """Return whether a row is a sample's value, or that value with padding behind or before it."""
    if row is value:
        return True
    if isinstance(row, Mapping) and isinstance(value, Mapping):
        return all(key in value and _holds(part, value[key]) for key, part in row.items())
    try:
        return _is_padded(torch.as_tensor(row), torch.as_tensor(value))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False


def _is_padded(row: torch.Tensor, value: torch.Tensor) -> bool:
    row, value = row.detach().cpu(), value.detach().cpu().to(row.dtype)
    if row.dim() != value.dim() or any(most < size for most, size in zip(row.shape, value.shape, strict=True)):
        return False
    if row.shape == value.shape:
        return torch.equal(row, value)
    for slices in (
        tuple(slice(size) for size in value.shape),
        tuple(slice(most - size, most) for most, size in zip(row.shape, value.shape, strict=True)),
    ):
        if torch.equal(row[slices], value):
            rest = torch.ones(row.shape, dtype=torch.bool)
            rest[slices] = False
            padding = row[rest]
            if bool((padding == padding[0]).all()):
                return True
    return False
