"""Which values a dataset holds, and which are parts of those as they are: a row, a window, an element.

Such a value was only selected. One that is cut, turned or picked in another way was changed.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from audit.recorders.calls.callables import is_a, is_users, is_users_class, list_held_values

_MOST_HELD = 100_000
_DEEPEST = 5


class HeldValues:
    """Everything that a dataset, or what it wraps, holds. It is searched no further than was asked for."""

    def __init__(self, dataset: Any) -> None:
        self._found: dict[int, Any] = {}
        self._rest = itertools.islice(_walk(dataset), _MOST_HELD)

    def holds(self, value: Any) -> bool:
        """Return whether the dataset holds this very object."""
        return id(value) in self._found or any(held is value for held in self._search())

    def whole_of(self, view: Any) -> Any:
        """Return a held array or tensor whose memory a view shares; None where there is none."""
        owner = _owner_of(view)
        for held in (*self._found.values(), *self._search()):
            if is_a(held, (torch.Tensor, np.ndarray)) and _owner_of(held) is owner:
                return held
        return None

    def _search(self) -> Iterator[Any]:
        for held in self._rest:
            # Kept, so that no other object takes its identity.
            self._found[id(held)] = held
            yield held


def is_view(value: Any) -> bool:
    """Return whether an array or tensor has no memory of its own, but that of another."""
    return _owner_of(value) is not value


def _owner_of(value: Any) -> Any:
    if is_a(value, torch.Tensor):
        return value if value._base is None else value._base
    while is_a(value.base, np.ndarray):
        value = value.base
    return value


def is_selected(view: Any, whole: Any) -> bool:
    """Return whether a view is a row, an element or a window of an array or tensor: one axis at most is shorter."""
    axes = iter(zip(_strides(whole), whole.shape, strict=True))
    shorter = 0
    for stride, size in zip(_strides(view), view.shape, strict=True):
        if size == 1:
            continue
        full = next((n for step, n in axes if step == stride), None)
        if full is None:
            return False
        shorter += size != full
    return shorter <= 1


def is_turned(view: Any) -> bool:
    """Return whether a view has the elements of its memory in another order."""
    strides = [stride for stride, size in zip(_strides(view), view.shape, strict=True) if size > 1]
    return any(stride < 0 for stride in strides) or strides != sorted(strides, reverse=True)


def _strides(value: Any) -> tuple[int, ...]:
    return tuple(value.stride()) if is_a(value, torch.Tensor) else tuple(value.strides)


def _walk(dataset: Any) -> Iterator[Any]:
    waiting: deque[tuple[Any, int]] = deque((held, _DEEPEST) for held in _attributes_of(dataset))
    while waiting:
        held, depth = waiting.popleft()
        yield held
        if depth and not is_a(held, (str, bytes, torch.Tensor, np.ndarray, type)):
            waiting.extend((part, depth - 1) for part in _parts_of(held))


def _parts_of(held: Any) -> Iterator[Any]:
    if is_a(held, (list, tuple, dict)):
        yield from itertools.islice(held.values() if is_a(held, dict) else held, _MOST_HELD)
    elif is_users(held) or hasattr(type(held), "__getitem__"):
        yield from _attributes_of(held)


def _attributes_of(owner: Any) -> Iterator[Any]:
    yield from (held for _, held in list_held_values(owner))
    for kind in type(owner).__mro__:
        if kind.__module__ != "builtins" and is_users_class(kind):
            yield from list(vars(kind).values())
