"""Which values carry a sample: pictures, tensors, arrays and text, and what is made of them."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch

from audit.recorders.calls.callables import is_a

T = TypeVar("T", bound=Hashable)

_DEEPEST = 3
_MOST_ITEMS = 256


def carries_data(value: Any, depth: int = _DEEPEST) -> bool:
    """Return whether a value is a picture, a tensor, an array or a text, or holds one."""
    if value is None or is_a(value, (bool, int, float, complex, type)):
        return False
    if is_a(value, str):
        return is_text(value)
    if is_a(value, torch.Tensor) or is_a(value, np.ndarray):
        return bool(value.ndim)
    if is_picture(value):
        return True
    if depth and is_a(value, (Mapping, list, tuple)):
        return any(carries_data(part, depth - 1) for part in parts_in(value))
    return False


def is_text(value: str) -> bool:
    """Return whether a string is text rather than a name, a key or a path."""
    return len(value.split(maxsplit=1)) > 1 and not (os.sep in value and os.path.lexists(value))


def is_text_alone(value: Any, depth: int = _DEEPEST) -> bool:
    """Return whether all the data that a value is or holds is text, as in a row of a table of texts."""
    if is_a(value, str):
        return is_text(value)
    if not depth or not is_a(value, (Mapping, list, tuple)):
        return False
    data = [part for part in parts_in(value) if carries_data(part, depth - 1)]
    return bool(data) and all(is_text_alone(part, depth - 1) for part in data)


def is_new_value(output: Any, given_text: bool) -> bool:
    """Return whether a call that was given data returned data: from text also tokens, numbers or a mapping of them."""
    if carries_data(output):
        return True
    if not given_text:
        return False
    return (is_a(output, (list, tuple, Mapping)) and len(output) > 0) or (is_a(output, str) and output != "")


def parts_in(value: Any) -> Iterator[Any]:
    """Yield the parts of a mapping, list or tuple."""
    parts = value.values() if is_a(value, Mapping) else value
    for place, part in enumerate(parts):
        if place >= _MOST_ITEMS:
            return
        yield part


def ids_in(value: Any, depth: int = _DEEPEST) -> set[int]:
    """Return the identities of a value and of everything in it that carries data."""
    if value is None or is_a(value, (bool, int, float, complex)):
        return set()
    found = {id(value)}
    if depth and is_a(value, (Mapping, list, tuple)):
        for part in parts_in(value):
            found |= ids_in(part, depth - 1)
    return found


def texts_in(value: Any, depth: int = _DEEPEST) -> set[str]:
    """Return a text, or the texts that a value holds."""
    if is_a(value, str):
        return {value}
    if not depth or not is_a(value, (Mapping, list, tuple)):
        return set()
    return set().union(*(texts_in(part, depth - 1) for part in parts_in(value)))


def find_leading_stages(passed: Iterable[tuple[T, set[int], Any]], wanted: set[int], *, alone: bool = False) -> set[T]:
    """Return the stages that led to wanted values: of each, the last first, a key, the ids of what it was given, and its output.

    With `alone`, only those all of whose output did: one that gives a picture with its mask led to both.
    """
    found: set[T] = set()
    for key, given, output in passed:
        if ids_in(output) & wanted and (not alone or _is_among(output, wanted)):
            found.add(key)
            wanted = wanted | given
    return found


def _is_among(value: Any, wanted: set[int], depth: int = _DEEPEST) -> bool:
    if id(value) in wanted:
        return True
    if not depth or not is_a(value, (Mapping, list, tuple)):
        return False
    return all(_is_among(part, wanted, depth - 1) for part in parts_in(value) if carries_data(part))


def is_picture(value: Any) -> bool:
    """Return whether a value is a picture of Pillow's."""
    # By its module, so that a pipeline without pictures need not import Pillow.
    return any(base.__module__ == "PIL.Image" and base.__name__ == "Image" for base in type(value).__mro__)
