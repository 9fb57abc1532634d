"""Stand-ins that stay in their slots while several items are made, one after the other, by our own code.

Putting them in and out for each item costs more than many a stage. Between two items of one batch no code of the user's
runs in this thread; before each item it is checked that every slot still holds what it should. What the user's code
put into a slot meanwhile stays there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from audit.recorders.stages.slots import Slot, SlotSnapshot
from audit.recorders.stages.stand_in import StageStandIn
from audit.values import native as loops

_NO_ATTRIBUTE = object()


class KeptStandIns:
    """The stand-ins of one pipeline, in their slots from `put` to `restore`."""

    def __init__(self, pairs: Sequence[tuple[Slot, Any]], found: SlotSnapshot) -> None:
        self._pairs = pairs
        self._found = found
        #: Holder and key of each place, and what it must hold.
        self._expected: list[tuple[Any, Any, Any]] = []
        self._lengths: list[tuple[Any, int]] = []
        self._before: list[tuple[Any, Any, Any, Any]] = []

    @staticmethod
    def is_possible(pairs: Sequence[tuple[Slot, Any]], found: SlotSnapshot) -> bool:
        """Return whether every place is a plain one: an attribute, a list item or a child module."""
        return all(type(slot) is Slot for slot in (*(slot for slot, _ in pairs), *found.slots()))

    def put(self) -> None:
        """Put all stand-ins into their slots. The slots must hold what they held when the stages were found."""
        self._before = []
        expected: dict[tuple[int, Any], tuple[Any, Any, Any]] = {}
        for slot in self._found.slots():
            holder = slot.holder
            if slot.key in holder if isinstance(holder, dict) else True:
                expected[id(holder), slot.key] = (holder, slot.key, holder[slot.key])
        for slot, stand_in in self._pairs:
            holder, key = slot.holder, slot.key
            before = holder.get(key, _NO_ATTRIBUTE) if isinstance(holder, dict) else holder[key]
            self._before.append((holder, key, stand_in, before))
            holder[key] = stand_in
            expected[id(holder), key] = (holder, key, stand_in)
        self._expected = list(expected.values())
        self._lengths = self._found.lengths()

    def is_current(self) -> bool:
        """Return whether every place holds what it should."""
        if loops.native is not None:
            return bool(loops.native.same_items(self._expected, self._lengths))
        try:
            for holder, key, value in self._expected:
                if holder[key] is not value:
                    return False
            for holder, length in self._lengths:
                if len(holder) != length:
                    return False
        except (LookupError, TypeError):
            return False
        return True

    def places(self) -> tuple[list[tuple[Any, Any, Any]], list[tuple[Any, int]]]:
        """Return holder, key and content of each place, and the lengths of holders: what `is_current` compares."""
        return self._expected, self._lengths

    def restore(self) -> None:
        """Put back what the slots held, except where something else was put there."""
        is_whole = True
        for holder, key, stand_in, before in reversed(self._before):
            try:
                is_mine = holder[key] is stand_in
            except LookupError:
                is_mine = False
            if not is_mine:
                is_whole = False
            elif before is _NO_ATTRIBUTE:
                del holder[key]
            else:
                holder[key] = before
        if not is_whole:
            for holder in {id(one[0]): one[0] for one in self._before}.values():
                _take_out(holder)
        self._before = []


def _take_out(holder: Any) -> None:
    """Replace stand-ins that the user's code moved to another place of a holder by what they stand for."""
    places = list(holder.items()) if isinstance(holder, dict) else list(enumerate(holder))
    for key, value in places:
        target = value
        while type(target) is StageStandIn:
            target = target._audit_target
        if target is not value:
            holder[key] = target
