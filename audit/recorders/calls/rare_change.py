"""Whether a few instructions of the dataset's own code, which only some items run, changed a value without a stage.

The variables before and after them are compared. A value that is new was changed if it was made of one that was there before,
or by operators. It was loaded if neither is so: a second file that is read instead of a damaged one, for example.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch

from audit import values
from audit.recorders.calls.callables import dict_of, is_a
from audit.recorders.calls.data_values import ids_in, is_picture, parts_in
from audit.recorders.calls.held_values import HeldValues, is_selected, is_view
from audit.recorders.calls.in_place_changes import changes_in_place, may_change_in_place
from audit.recorders.calls.operators import (
    Change,
    carries_numbers,
    changes_in,
    data_among,
    is_listed,
    is_plain_arithmetic,
    names_read,
)

#: Arrays of more bytes are not digested to see whether they were changed in place.
_MOST_BYTES = 1 << 26
_MOST_NAMES = 4

#: What a stage was given, as the identities of all in it, and what it returned.
PassedObjects = tuple[set[int], Any]


class Variables:
    """The data that a function held at one moment, by variable, or by `.name` for an attribute of its object.

    Everything is kept, so that no other object takes an identity of it.
    """

    def __init__(self, held: dict[str, Any], *, with_arrays: bool) -> None:
        self.held = held
        self.ids: set[int] = set().union(*(ids_in(value) for value in held.values()))
        self._marks = {name: _mark_of(value, with_arrays) for name, value in held.items()}

    def is_same(self, name: str, other: Variables) -> bool:
        """Return whether a variable holds the same object at another moment, with the same content as far as that is known."""
        return other.held.get(name) is self.held[name] and _are_same(self._marks[name], other._marks[name])


def _mark_of(value: Any, with_arrays: bool, depth: int = 2) -> Any:
    """Return what differs once the content of a value has changed, as far as that is cheap to know."""
    if is_a(value, torch.Tensor):
        return None if value.is_inference() else value._version
    if is_a(value, np.ndarray):
        return _digest_of(value) if with_arrays else None
    if depth and is_a(value, (list, tuple, Mapping)):
        return [(part, _mark_of(part, with_arrays, depth - 1)) for part in parts_in(value)]
    return None


def _digest_of(value: np.ndarray[Any, Any]) -> str | None:
    return values.digest(value) if value.nbytes <= _MOST_BYTES and not value.dtype.hasobject else None


def _are_same(one: Any, other: Any) -> bool:
    if not is_a(one, list) or not is_a(other, list):
        return bool(one == other)
    return len(one) == len(other) and all(
        part is part_of and _are_same(mark, mark_of)
        for (part, mark), (part_of, mark_of) in zip(one, other, strict=True)
    )


class CodeFacts:
    """What the instructions of one function do."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        instructions = list(dis.get_instructions(code))
        self.by_offset = {one.offset: one for one in instructions}
        self.order = list(self.by_offset)
        self.may_change_in_place = may_change_in_place(code)
        #: Where each variable, and each attribute as `.name`, is read.
        self.reads: dict[str, set[int]] = {}
        #: The attributes that it sets.
        self.attributes: set[str] = set()
        lines: dict[int, int] = {}
        line = code.co_firstlineno
        for one in instructions:
            line = one.positions.lineno if one.positions is not None and one.positions.lineno else line
            lines[one.offset] = line
            for name in names_read(one):
                self.reads.setdefault(name, set()).add(one.offset)
            if one.opname == "STORE_ATTR":
                self.attributes.add(one.argval)
        self.lines = lines

    def variables_of(self, frame: FrameType) -> Variables:
        """Return the data in a function's variables, and in the attributes of its object that it sets."""
        variables = dict(frame.f_locals)
        owner = variables.get(self.code.co_varnames[0]) if self.code.co_argcount else None
        attributes = {f".{name}": dict_of(owner).get(name) for name in self.attributes}
        found = data_among(variables | attributes)
        return Variables(found, with_arrays=self.may_change_in_place)


@functools.lru_cache(maxsize=256)
def facts_of(code: CodeType) -> CodeFacts:
    """Return what the instructions of a function do."""
    return CodeFacts(code)


class RareChange:
    """Judges some instructions of one function that have run."""

    def __init__(self, frame: FrameType, offsets: set[int], before: Variables, dataset: Any) -> None:
        self._facts = facts_of(frame.f_code)
        self._offsets = offsets
        self._ran = [self._facts.by_offset[offset] for offset in sorted(offsets) if offset in self._facts.by_offset]
        self._before = before
        self._read = {name for one in self._ran for name in names_read(one)}
        self._uses_data = any(name in before.held for name in self._read)
        self._changes = [
            change
            for change in changes_in(frame.f_code, frame.f_globals, frame.f_locals)
            if change.offset in offsets and not self._is_of_plain_numbers(change)
        ]
        self._held = HeldValues(dataset)

    def is_found(self, after: Variables, returned: Any, earlier: set[int], passed: Sequence[PassedObjects]) -> bool:
        """Return whether a value was changed that no stage has returned.

        `earlier` are the identities of what stages had returned before, `passed` is what stages were given and returned meanwhile.
        """
        if any(name in self._before.held and id(self._before.held[name]) in earlier for name in self._read):
            return False  # the next stage, or the item, shows what was done to it
        explained = set(earlier)
        for given, output in passed:
            if self._uses_data and not given & (self._before.ids | explained) and self._has_change():
                return True
            explained |= ids_in(output)
        for name, value in after.held.items():
            if not self._facts.reads.get(name, set()) - self._offsets:
                continue  # nothing else uses it
            if value is not self._before.held.get(name):
                if self._is_changed(value, explained, may_be_held=not name.startswith(".")):
                    return True
            elif is_a(value, (list, Mapping)):
                if not self._before.is_same(name, after) and self._is_changed(value, explained):
                    return True
            elif not self._before.is_same(name, after) or (is_picture(value) and self._is_drawn_on(name)):
                return True
        return returned is not None and carries_numbers(returned) and self._is_changed(returned, explained)

    def describe(self) -> str:
        """Return where the instructions are, and what in them changes values."""
        names: dict[str, None] = dict.fromkeys(change.name for change in self._changes)
        names.update(dict.fromkeys(one.argval for one in self._ran if _is_method(one)))
        lines = sorted({self._facts.lines[one.offset] for one in self._ran})
        shown = f"{lines[0]}" if len(lines) == 1 else f"{lines[0]}–{lines[-1]}"
        what = ", ".join(list(names)[:_MOST_NAMES])
        return f"line {shown}" + (f": {what}" if what else "")

    def _is_changed(self, value: Any, explained: set[int], *, may_be_held: bool = True) -> bool:
        if is_a(value, (tuple, list, Mapping)) and not is_listed(value):
            return any(
                self._is_changed(part, explained, may_be_held=may_be_held)
                for part in parts_in(value)
                if carries_numbers(part)
            )
        if id(value) in self._before.ids or id(value) in explained:
            return False
        if may_be_held and self._is_held(value):
            return False
        if self._uses_data and self._has_change():
            return True
        return any(change.is_of_text if is_a(value, str) else change.is_of_numbers for change in self._changes)

    def _is_held(self, value: Any) -> bool:
        if self._held.holds(value):
            return True
        if not is_a(value, (torch.Tensor, np.ndarray)) or not is_view(value):
            return False
        whole = self._held.whole_of(value)
        return whole is not None and is_selected(value, whole)

    def _has_change(self) -> bool:
        return bool(self._changes) or any("CALL" in one.opname for one in self._ran)

    def _is_drawn_on(self, name: str) -> bool:
        return name in self._read and changes_in_place(self._ran)

    def _is_of_plain_numbers(self, change: Change) -> bool:
        place = self._facts.order.index(change.offset)
        before = [self._facts.by_offset[offset] for offset in self._facts.order[max(0, place - 2) : place]]
        return change.name.startswith("operators") and is_plain_arithmetic(before, self._before.held)


def _is_method(one: dis.Instruction) -> bool:
    return one.opname == "LOAD_METHOD" or (one.opname == "LOAD_ATTR" and "NULL" in (one.argrepr or ""))
