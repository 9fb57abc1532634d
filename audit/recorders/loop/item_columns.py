"""The parts of items that hold numbers, each as a column: one value for each place of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from audit.recorders.calls.data_values import is_picture
from audit.recorders.items.item_parts import split_item

_DEEPEST = 4
_MOST_PARTS = 64
_Path = tuple[Any, ...]


@dataclass(slots=True)
class ItemColumn:
    """One part of the items: its value by place."""

    values: dict[int, torch.Tensor] = field(default_factory=dict)
    #: Whether it is what the model is to be given.
    is_input: bool = False

    def may_hold(self, row: torch.Tensor) -> bool:
        """Return whether a row of a batch has the form of these values, or may have it but for padding."""
        sizes = tuple(size for size in row.shape if size > 1)
        return any(
            len(sizes) == sum(size > 1 for size in value.shape)
            or row.dim() == value.dim()
            or (row.dim() == 1 and row.numel() == value.numel())
            for value in self.values.values()
        )


def columns_of(items: Sequence[Any]) -> list[ItemColumn]:
    """Return the columns of a list of items, those of the model's input first."""
    columns: dict[_Path, ItemColumn] = {}
    for place, item in enumerate(items):
        wanted = split_item(item)[0]
        for path, part, tensor in _numbers_in(item, (), _DEEPEST):
            if path not in columns and len(columns) >= _MOST_PARTS:
                continue
            column = columns.setdefault(path, ItemColumn(is_input=part is wanted))
            column.values[place] = tensor
    return sorted(columns.values(), key=lambda column: not column.is_input)


def tensors_inside(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors and arrays that an object of any kind holds."""
    for _, _, tensor in _numbers_in(value, (), _DEEPEST):
        yield tensor


def as_numbers(value: Any) -> torch.Tensor | None:
    """Return what holds numbers as a tensor on the processor; None for anything else."""
    try:
        if isinstance(value, torch.Tensor):
            is_plain = value.layout == torch.strided and not value.is_nested and not value.is_quantized
            return value.detach().cpu() if is_plain else None
        if isinstance(value, np.ndarray):
            # torch warns of memory that it must not write to.
            return torch.from_numpy(np.ascontiguousarray(value) if value.flags.writeable else value.copy())
        if isinstance(value, (int, float, np.number)) or is_picture(value) or _is_number_list(value):
            return torch.as_tensor(np.array(value))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    return None


def _is_number_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(one, (int, float)) for one in value)


def _numbers_in(value: Any, path: _Path, depth: int) -> Iterator[tuple[_Path, Any, torch.Tensor]]:
    tensor = as_numbers(value)
    if tensor is not None:
        yield path, value, tensor
        if not isinstance(value, torch.Tensor) and tensor.dim() == 3:
            yield (*path, "channels first"), value, tensor.permute(2, 0, 1)
    elif depth:
        for key, part in _parts_of(value):
            yield from _numbers_in(part, (*path, key), depth - 1)


def _parts_of(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value[:_MOST_PARTS])
    elif not isinstance(value, (str, bytes, type, torch.Tensor)) and not callable(value):
        try:
            held = vars(value)
        except TypeError:
            return
        yield from held.items()
