"""Changes of arrays by operators (`x / 255`) and universal functions (`np.sqrt`), which no profile function sees.

Two things together are evidence of one: the value is new, so that it was neither returned by a function of a library nor is
held by the dataset, and the user's own code that ran has such operations.
"""

from __future__ import annotations

import dis
from collections.abc import Container, Mapping, Sequence
from pathlib import PurePath
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from audit.recorders.calls.callables import dict_of, is_a
from audit.recorders.calls.data_values import carries_data

#: The remainder is left out: it is how an index becomes a label.
_ARITHMETIC = frozenset(
    sign + assigned
    for sign in ("+", "-", "*", "/", "//", "**", "@", "&", "|", "^", "<<", ">>")
    for assigned in ("", "=")
)
_UNARY = frozenset(["UNARY_NEGATIVE", "UNARY_INVERT"])
_STORES = frozenset(["STORE_FAST", "STORE_NAME", "STORE_DEREF"])
#: Instructions that make a text of its parts.
_TEXT_PARTS = frozenset(["BUILD_STRING", "FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC"])
_COMPREHENSIONS = frozenset(["LIST_APPEND", "SET_ADD", "MAP_ADD"])
#: Kinds of changes that count only for some values: any code has them.
SLICING, TEXT_PARTS, COMPREHENSION = "slices and lists of indices", "text made of parts", "comprehensions"


class Change(NamedTuple):
    """An instruction that changes a value."""

    offset: int
    line: int
    name: str

    @property
    def is_of_numbers(self) -> bool:
        """Whether it is evidence that an array was changed."""
        return self.name not in (SLICING, TEXT_PARTS, COMPREHENSION)

    @property
    def is_of_text(self) -> bool:
        """Whether it is evidence that a text was changed."""
        return self.name in (SLICING, TEXT_PARTS, "operators")

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


def has_branches(code: CodeType) -> bool:
    """Return whether code may do another thing when it runs the next time: it has conditions, or catches errors."""
    if code.co_exceptiontable:
        return True
    return any("JUMP" in one.opname and "IF" in one.opname for one in dis.get_instructions(code))


def _change_of(
    instructions: Sequence[dis.Instruction], place: int, names: Mapping[str, Any], variables: Mapping[str, Any]
) -> str | None:
    one = instructions[place]
    if one.opname in ("STORE_SUBSCR", "STORE_SLICE"):
        # Of a slice, newer versions of Python put both ends on the stack.
        container = _before_value(instructions, place, 2 if one.opname == "STORE_SLICE" else 1)
        if container is None or container.opname != "LOAD_FAST":
            return None
        return "assignment to items" if carries_numbers(variables.get(container.argval)) else None
    if one.opname in _TEXT_PARTS or (one.argrepr.strip() == "%" and _has_format(instructions[:place])):
        return TEXT_PARTS
    if one.opname in _COMPREHENSIONS:
        return COMPREHENSION
    if one.opname == "BINARY_SLICE" or (one.opname == "BINARY_SUBSCR" and _is_cut(instructions[:place])):
        return SLICING
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
    if one.opname == "BINARY_OP" and _makes_text(instructions, place, {**names, **variables}):
        return TEXT_PARTS
    return "operators in place" if one.opname == "BINARY_OP" and one.argrepr.endswith("=") else "operators"


def _makes_text(instructions: Sequence[dis.Instruction], place: int, held: Mapping[str, Any]) -> bool:
    """Return whether an operator joins texts or paths: one of its two sides is known to be one."""
    sides = (place - 1, _place_before_value(instructions, place, 1))
    return any(side is not None and _is_text(instructions, side, held) for side in sides)


def _is_text(instructions: Sequence[dis.Instruction], place: int, held: Mapping[str, Any]) -> bool:
    """Return whether an instruction leaves a text or a path on the stack."""
    one = instructions[place]
    if one.opname == "LOAD_CONST":
        return is_a(one.argval, str)
    if one.opname == "BINARY_OP":
        return _makes_text(instructions, place, held)
    if one.opname in ("LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
        return is_a(held.get(one.argval), (str, PurePath))
    if one.opname == "LOAD_ATTR" and place and instructions[place - 1].opname == "LOAD_FAST":
        # As it is stored: a property could run code.
        return is_a(dict_of(held.get(instructions[place - 1].argval)).get(one.argval), (str, PurePath))
    return one.opname in _TEXT_PARTS


def names_read(one: dis.Instruction) -> tuple[str, ...]:
    """Return the variables that an instruction reads, or the attribute, as `.name`."""
    if one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return (f".{one.argval}",)
    if one.opname in ("LOAD_DEREF", "LOAD_NAME", "LOAD_CLOSURE"):
        return (one.argval,)
    if not one.opname.startswith("LOAD_FAST") and one.opname != "STORE_FAST_LOAD_FAST":
        return ()
    # Newer versions of Python load two variables with one instruction, or store one and load another.
    names: tuple[str, ...] = one.argval if is_a(one.argval, tuple) else (one.argval,)
    return names[1:] if one.opname.startswith("STORE") else names


def is_plain_arithmetic(before: Sequence[dis.Instruction], data: Container[str]) -> bool:
    """Return whether the instructions before an operator load constants and variables without data: an index, for example."""
    found = 0
    for one in reversed(before[-2:]):
        if not one.opname.startswith(("LOAD_FAST", "LOAD_CONST", "LOAD_DEREF", "LOAD_SMALL_INT")):
            return False
        names = names_read(one)
        if any(name in data for name in names):
            return False
        found += max(len(names), 1)
        if found >= 2:
            return True
    return False


def _has_format(instructions: Sequence[dis.Instruction]) -> bool:
    return any(one.opname == "LOAD_CONST" and is_a(one.argval, str) and "%" in one.argval for one in instructions)


def _is_cut(instructions: Sequence[dis.Instruction]) -> bool:
    """Return whether a subscript, made by the last of these instructions, takes more than one element or row."""
    before = instructions[-1]
    if before.opname == "BUILD_TUPLE":
        return any(one.opname == "BUILD_SLICE" for one in instructions[-12:])
    return before.opname in ("BUILD_SLICE", "BUILD_LIST", "LIST_EXTEND") or (
        before.opname == "LOAD_CONST" and is_a(before.argval, slice)
    )


def _before_value(instructions: Sequence[dis.Instruction], place: int, count: int) -> dis.Instruction | None:
    """Return the instruction before those that made so many values at the top of the stack."""
    found = _place_before_value(instructions, place, count)
    return None if found is None else instructions[found]


def _place_before_value(instructions: Sequence[dis.Instruction], place: int, count: int) -> int | None:
    made = 0
    for start in range(place - 1, 0, -1):
        one = instructions[start]
        made += dis.stack_effect(one.opcode, one.arg, jump=False)
        if made == count:
            return start - 1
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
    """Return whether a value is a number of numpy's, or an array, a tensor, a picture or a text, or holds one; or a list of numbers."""
    return is_a(value, np.generic) or is_listed(value) or carries_data(value)


def data_among(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of a function that hold data. Mappings of the user's own are left alone: they may read files."""
    looked_at = ((name, held) for name, held in variables.items() if is_a(held, dict) or not is_a(held, Mapping))
    return {name: held for name, held in looked_at if carries_numbers(held)}


def is_listed(value: Any) -> bool:
    """Return whether a value is a list or tuple of numbers or texts, such as tokens."""
    return is_a(value, (list, tuple)) and len(value) > 0 and is_a(value[0], (int, float, str, np.generic))
