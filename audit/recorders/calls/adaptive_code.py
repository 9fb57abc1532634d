"""Finds code that only some items run, by the traces that it leaves in Python 3.11, which has no `sys.monitoring`.

A function that was called a few times has each instruction replaced by a faster one when this runs for the first time; `dis`
shows that. So it is known afterwards what has run, but not with which values: it is only said that such code may change a value.
"""

from __future__ import annotations

import dis
import itertools
from collections.abc import Callable, Collection, Mapping
from types import CodeType

import numpy as np

from audit.recorders.calls.callables import describe_code
from audit.recorders.calls.in_place_changes import changes_in_place
from audit.recorders.calls.operators import changes_in, is_plain_arithmetic, names_read

#: So many times code is looked at after its instructions began to be replaced: what has run by then is ordinary.
_FIRST_LOOKS = 2
#: The attribute of code that has its instructions as they are now.
_CURRENT_CODE = "_co_code_adaptive"
#: The bytes of an instruction and of its counter.
_SIZE = 4
_STORES = ("STORE_FAST", "STORE_DEREF")
#: Stands for what a variable holds, where only that it is data is known.
_DATA = np.zeros(1)


class _AdaptiveFunction:
    """One function, and which of its instructions have not run yet."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self._looks = 0
        #: The instructions that have not run, by offset: their bytes and those of their counter.
        self._waiting: dict[int, bytes] = {}

    def take(self) -> set[int]:
        """Return the instructions that ran for the first time since this was asked last."""
        if self._looks == _FIRST_LOOKS and not self._waiting:
            return set()
        now: bytes = getattr(self.code, _CURRENT_CODE)
        if self._looks < _FIRST_LOOKS:
            if now != self.code.co_code:  # else it was not called often enough yet
                self._looks += 1
                self._waiting = _find_waiting(self.code, now)
            return set()
        ran = {offset for offset, waiting in self._waiting.items() if now[offset : offset + _SIZE] != waiting}
        for offset in ran:
            del self._waiting[offset]
        return ran


def _find_waiting(code: CodeType, now: bytes) -> dict[int, bytes]:
    """Return the instructions that are to be replaced when they run, and have not run: behind each is its counter."""
    return {
        one.offset: now[one.offset : one.offset + _SIZE]
        for one in dis.get_instructions(code, adaptive=True)
        if one.opname.endswith("_ADAPTIVE") and not any(now[one.offset + 2 : one.offset + _SIZE])
    }


class AdaptiveCode:
    """Watches the code of one dataset in one process."""

    #: Why something could not be judged.
    problem: str | None = None

    def __init__(self, observed: Callable[[], Collection[str]]) -> None:
        """Keep code warm; `observed` returns the names of functions whose calls are stages."""
        self._observed = observed
        self._warmed: list[_AdaptiveFunction] = []
        #: By function, the variables that held data while calls were listed.
        self._data_names: dict[CodeType, set[str]] = {}

    @property
    def is_watching(self) -> bool:
        """Whether code is watched."""
        return bool(self._warmed)

    def begin(self, codes: list[CodeType]) -> bool:
        """Watch code; return False where that is not possible."""
        self._warmed = [_AdaptiveFunction(code) for code in codes]
        return self.is_watching

    def note_names(self, names: Mapping[CodeType, set[str]]) -> None:
        """Note the variables of functions that held data while calls were listed."""
        self._data_names.update(names)

    def end_first(self) -> None:
        """Say that the first item is made."""

    def take(self) -> list[str]:
        """Return where values may have been changed, since this was asked last."""
        found: list[str] = []
        for warmed in self._warmed:
            code = warmed.code
            if ran := warmed.take():
                names = self._data_names.get(code, set())
                found += [
                    f"{describe_code(code)}, {where}" for where in _changes_of(code, ran, names, self._observed())
                ]
        return found


def _changes_of(code: CodeType, ran: set[int], data: set[str], observed: Collection[str]) -> list[str]:
    """Return the lines, among those that ran, that may have changed a variable or the returned value."""
    if not data.isdisjoint(code.co_varnames[: code.co_argcount]):
        return []  # it is given values: a stage, which may do as it likes
    changes = {change.offset: change.name for change in changes_in(code, {}, dict.fromkeys(data, _DATA))}
    found: list[str] = []
    for block in _blocks_of(code):
        if ran.isdisjoint(one.offset for one in block):
            continue
        made: set[str] = set()
        for line, ones in itertools.groupby(block, _line_of):
            statement = list(ones)
            if names := _names_of_changes(statement, changes, data - made, observed):
                found.append(f"line {line}: {', '.join(names)}")
            made |= {one.argval for one in statement if one.opname in _STORES}
    return found


def _names_of_changes(
    statement: list[dis.Instruction], changes: Mapping[int, str], data: set[str], observed: Collection[str]
) -> list[str]:
    """Return the names of operators and methods by which one statement may change a value."""
    if not _keeps_value(statement, data):
        return []
    names = [
        changes[one.offset]
        for place, one in enumerate(statement)
        if one.offset in changes and not is_plain_arithmetic(statement[:place], data)
    ]
    called = [one.argval for one in statement if one.opname in ("LOAD_METHOD", "LOAD_GLOBAL", "LOAD_ATTR")]
    uses_data = any(name in data for one in statement for name in names_read(one))
    if uses_data and any(one.opname == "CALL" for one in statement) and not any(name in observed for name in called):
        names += called[-1:]
    return list(dict.fromkeys(names))


def _line_of(one: dis.Instruction) -> int | None:
    return one.positions.lineno if one.positions is not None else None


def _blocks_of(code: CodeType) -> list[list[dis.Instruction]]:
    """Return the instructions that run one after the other without a jump."""
    blocks: list[list[dis.Instruction]] = [[]]
    for one in dis.get_instructions(code):
        if one.is_jump_target and blocks[-1]:
            blocks.append([])
        blocks[-1].append(one)
        if "JUMP" in one.opname or one.opname in ("RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "FOR_ITER"):
            blocks.append([])
    return [block for block in blocks if block]


def _keeps_value(statement: list[dis.Instruction], data: set[str]) -> bool:
    """Return whether a statement may set a variable that holds data, change such a value in place, or leave one for what follows."""
    if any(one.opname in _STORES and one.argval in data for one in statement):
        return True
    if changes_in_place(statement) and any(name in data for one in statement for name in names_read(one)):
        return True
    if statement[-1].opname == "RETURN_VALUE":
        return True
    return sum(dis.stack_effect(one.opcode, one.arg, jump=False) for one in statement) > 0
