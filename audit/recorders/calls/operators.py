"""Changes of a value by operators (`x / 255`), which no profile function and no stand-in sees.

Two things together are evidence of one: the value is new, so that it was neither returned by a function of a library nor is
held by the dataset, and the user's own code that ran has arithmetic operators.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import Any

import numpy as np
import torch

from audit.recorders.calls.callables import held_values, is_a, is_users

#: The remainder is left out: it is how an index becomes a label.
_ARITHMETIC = frozenset(
    sign + assigned
    for sign in ("+", "-", "*", "/", "//", "**", "@", "&", "|", "^", "<<", ">>")
    for assigned in ("", "=")
)
_UNARY = frozenset(["UNARY_NEGATIVE", "UNARY_INVERT"])
_MOST_HELD = 100_000


def operator_lines(code: CodeType) -> list[int]:
    """Return the lines of a function that have arithmetic operators."""
    lines: dict[int, None] = {}
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line if isinstance(instruction.starts_line, int) else line
        if instruction.opname in _UNARY or (
            instruction.opname == "BINARY_OP" and instruction.argrepr.strip() in _ARITHMETIC
        ):
            lines[instruction.positions.lineno if instruction.positions and instruction.positions.lineno else line] = (
                None
            )
    return list(lines)


def is_new_array(value: Any) -> bool:
    """Return whether a value is a tensor or an array with memory of its own: no view of another."""
    if is_a(value, torch.Tensor):
        return bool(value.ndim) and value._base is None
    return is_a(value, np.ndarray) and bool(value.ndim) and value.base is None


def is_held(value: Any, dataset: Any) -> bool:
    """Return whether a dataset, or what it wraps, holds this very object."""
    return any(held is value for held in _held_objects(dataset, 4))


def _held_objects(owner: Any, depth: int) -> Iterator[Any]:
    for _, held in held_values(owner):
        yield held
        if not depth:
            continue
        if is_a(held, (list, tuple, dict)):
            parts = held.values() if is_a(held, dict) else held
            for place, part in enumerate(parts):
                if place >= _MOST_HELD:
                    break
                yield part
                if is_a(part, (list, tuple)):
                    yield from part
                elif is_a(part, dict):
                    yield from part.values()
        elif not is_a(held, (str, bytes, torch.Tensor, np.ndarray)) and (
            is_users(held) or hasattr(type(held), "__getitem__")
        ):
            yield from _held_objects(held, depth - 1)
