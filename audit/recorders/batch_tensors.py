"""The tensors and objects that a batch, or the arguments of a model, are made of."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch


def all_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor in a batch or in a model's arguments."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from all_tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from all_tensors(item)


def is_list_of_tensors(value: Any) -> bool:
    """Return whether it is a list or tuple of tensors, and of nothing else."""
    return isinstance(value, (tuple, list)) and bool(value) and all(isinstance(one, torch.Tensor) for one in value)


def split_listed_samples(data: Any, count: int) -> Iterator[list[torch.Tensor]]:
    """Yield the lists of a batch that may have one tensor for each of its `count` samples."""
    parts = list(data.values()) if isinstance(data, Mapping) else list(data) if isinstance(data, (tuple, list)) else []
    for part in (data, *parts):
        if is_list_of_tensors(part) and len(part) == count:
            yield list(part)


def object_references(data: Any) -> Iterator[weakref.ref[Any]]:
    """Yield a weak reference to each object of a batch that is not a tensor: a graph, a structure of the user's own."""
    parts = [data, *data] if isinstance(data, (tuple, list)) else [data]
    for part in parts:
        if not isinstance(part, (torch.Tensor, tuple, list, dict, str, int, float)):
            with contextlib.suppress(TypeError):
                yield weakref.ref(part)


def find_viewed_rows(own: torch.Tensor, other: torch.Tensor) -> list[int] | None:
    """Return which rows of `own` the tensor `other` is a view of; None if it is not a view, or cuts through samples."""
    try:
        if other.dim() == 0 or own.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
            return None
        if own.untyped_storage().data_ptr() == 0 or own.dtype != other.dtype:
            return None
    except (RuntimeError, NotImplementedError):
        return None
    step = own.stride(0)
    within = sum((size - 1) * stride for size, stride in zip(other.shape[1:], other.stride()[1:], strict=True))
    first, offset = divmod(int(other.storage_offset()) - int(own.storage_offset()), step) if step else (0, 0)
    if step <= 0 or other.stride(0) % step or offset + within >= step:
        return None
    rows = [first + n * (other.stride(0) // step) for n in range(other.shape[0])]
    return rows if all(0 <= row < own.shape[0] for row in rows) else None
