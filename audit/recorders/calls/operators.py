"""Changes of arrays by operators (`x / 255`) and universal functions (`np.sqrt`), which no profile function sees.

Two things together are evidence of one: the value is new, so that it was neither returned by a function of a library nor is
held by the dataset, and the user's own code that ran has such operations.
"""

from __future__ import annotations

import dis
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from audit.recorders.calls.callables import held_values, is_a, is_users
from audit.recorders.calls.data_values import carries_data

#: The remainder is left out: it is how an index becomes a label.
_ARITHMETIC = frozenset(
    sign + assigned
    for sign in ("+", "-", "*", "/", "//", "**", "@", "&", "|", "^", "<<", ">>")
    for assigned in ("", "=")
)
_UNARY = frozenset(["UNARY_NEGATIVE", "UNARY_INVERT"])
_STORES = frozenset(["STORE_FAST", "STORE_NAME", "STORE_DEREF"])
_MOST_HELD = 100_000


class Change(NamedTuple):
    """An instruction that changes a value."""

    offset: int
    line: int
    name: str

    @property
    def is_in_place(self) -> bool:
        """Whether it changes the memory of an array, which the dataset may hold."""
        return self.name in ("operators in place", "assignment to items")


def changes_in(code: CodeType, names: Mapping[str, Any], variables: Mapping[str, Any]) -> list[Change]:
    """Return the operators of a function that ran, and its calls of numpy's universal functions.

    `names` are its globals, `variables` its local variables at its end: what is stored in one that holds no array or picture
    is a number, an index or a label.
    """
    found: list[Change] = []
    line = code.co_firstlineno
    instructions = list(dis.get_instructions(code))
    for place, one in enumerate(instructions):
        line = one.positions.lineno if one.positions is not None and one.positions.lineno else line
        name = _change_of(instructions, place, names, variables)
        if name is not None:
            found.append(Change(one.offset, line, name))
    return found


def _change_of(
    instructions: Sequence[dis.Instruction], place: int, names: Mapping[str, Any], variables: Mapping[str, Any]
) -> str | None:
    one = instructions[place]
    if one.opname == "STORE_SUBSCR":
        container = _before_value(instructions, place)
        if container is None or container.opname != "LOAD_FAST":
            return None
        return "assignment to items" if carries_numbers(variables.get(container.argval)) else None
    if one.opname in ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"):
        function = _resolve(instructions, place, names)
        return f"numpy.{function.__name__}" if is_a(function, np.ufunc) else None
    is_comparison = one.opname == "COMPARE_OP"
    if not is_comparison and one.opname not in _UNARY and not _is_arithmetic(one):
        return None
    after = instructions[place + 1] if place + 1 < len(instructions) else one
    if after.opname in _STORES and after.argval in variables and not carries_numbers(variables[after.argval]):
        return None
    if is_comparison and "JUMP" in after.opname:
        return None
    return "operators in place" if one.opname == "BINARY_OP" and one.argrepr.endswith("=") else "operators"


def _before_value(instructions: Sequence[dis.Instruction], place: int) -> dis.Instruction | None:
    """Return the instruction before those that made the topmost value of the stack."""
    made = 0
    for start in range(place - 1, 0, -1):
        one = instructions[start]
        made += dis.stack_effect(one.opcode, one.arg, jump=False)
        if made == 1:
            return instructions[start - 1]
    return None


def _is_arithmetic(one: dis.Instruction) -> bool:
    return one.opname == "BINARY_OP" and one.argrepr.strip() in _ARITHMETIC


def _resolve(instructions: Sequence[dis.Instruction], place: int, names: Mapping[str, Any]) -> Any:
    """Return what a name means, or an attribute of a module that is named before it."""
    one = instructions[place]
    if one.opname == "LOAD_GLOBAL":
        return names.get(one.argval)
    before = instructions[place - 1]
    module = names.get(before.argval) if before.opname == "LOAD_GLOBAL" else None
    return getattr(module, one.argval, None) if is_a(module, ModuleType) else None


def carries_numbers(value: Any) -> bool:
    """Return whether a value is a number of numpy's, or an array, a tensor, a picture or a text, or holds one."""
    return is_a(value, np.generic) or carries_data(value)


def is_new_array(value: Any) -> bool:
    """Return whether a value is an array with memory of its own: no view of another."""
    if is_a(value, np.generic):
        return True
    return is_a(value, np.ndarray) and bool(value.ndim) and value.base is None


def is_held(value: Any, dataset: Any) -> bool:
    """Return whether a dataset, or what it wraps, holds this very object."""
    seen = 0
    waiting: deque[tuple[Any, int]] = deque((held, 5) for _, held in held_values(dataset))
    while waiting and seen < _MOST_HELD:
        held, depth = waiting.popleft()
        seen += 1
        if held is value:
            return True
        if depth and not is_a(held, (str, bytes, torch.Tensor, np.ndarray, type)):
            waiting.extend((part, depth - 1) for part in _parts_of(held))
    return False


def _parts_of(held: Any) -> Iterator[Any]:
    if is_a(held, (list, tuple, dict)):
        yield from itertools.islice(held.values() if is_a(held, dict) else held, _MOST_HELD)
    elif is_users(held) or hasattr(type(held), "__getitem__"):
        yield from (part for _, part in held_values(held))
