"""Values that a function of a library, written in Python, made of a value which the user's own code gave it.

`image.rotate(15)` and `np.rot90(array)` return a new value, as `np.load(path)` does. They differ in what they are given: a
function that is given no data has loaded what it returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

from audit.recorders.calls.c_functions import is_conversion
from audit.recorders.calls.callables import is_a
from audit.recorders.calls.data_values import carries_data, ids_in, parts_in


class LibraryResults:
    """Collects such values during one visit."""

    def __init__(self) -> None:
        #: By the identity of a call's frame that has not returned: the identities of what it was given, and whether all of that is text.
        self._given: dict[int, tuple[set[int], bool]] = {}
        #: By identity. The values are kept, so that no other takes its identity.
        self._made: dict[int, Any] = {}

    def begin(self, frame: FrameType, code: CodeType) -> None:
        """Note a call that was given data."""
        if is_conversion(code.co_name) or code.co_name.startswith("_"):
            return
        given = list(frame.f_locals.values())
        is_text = not any(carries_data(value) and not is_a(value, str) for value in given)
        self._given[id(frame)] = set().union(*map(ids_in, given)), is_text

    def end(self, frame: FrameType, value: Any) -> bool:
        """Note what a call returned; return whether it is such a value."""
        if id(frame) not in self._given:
            return False
        given, is_text = self._given.pop(id(frame))
        if is_text:
            # What is read of a text, as by `json.loads`, is not a changed text.
            made: list[Any] = [value] if is_a(value, str) else []
        else:
            made = [value, *parts_in(value)] if is_a(value, (tuple, list, Mapping)) else [value]
        self._made.update((id(part), part) for part in made if id(part) not in given and carries_data(part))
        return id(value) in self._made

    def has(self, value: Any) -> bool:
        """Return whether a value was made so."""
        return id(value) in self._made

    def forget_values(self) -> None:
        """Let go of the values."""
        self._made = {}
