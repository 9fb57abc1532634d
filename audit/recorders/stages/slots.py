"""Places that hold a callable, where a stand-in can sit for the length of a visit."""

from __future__ import annotations

from types import MethodType
from typing import Any

from audit.recorders.stages.stand_in import StageStandIn

_NO_ATTRIBUTE = object()


class Slot:
    """A place that holds a callable: an attribute, a list item or a child module."""

    def __init__(self, owner: Any, key: str | int, *, child: bool = False) -> None:
        self.owner = owner
        self.key = key
        self.child = child
        self._before: Any = _NO_ATTRIBUTE

    @property
    def holder(self) -> Any:
        """The list or dict in which the slot is a place."""
        if self.child:
            return self.owner._modules
        return self.owner if isinstance(self.owner, list) else self.owner.__dict__

    @property
    def identity(self) -> tuple[int, str | int]:
        """Two slots are the same place when these are equal."""
        return (id(self.owner), self.key)

    def get(self) -> Any:
        """Return what the slot holds."""
        holder = self.holder
        try:
            return holder[self.key]
        except KeyError:
            return getattr(self.owner, str(self.key))

    def put(self, value: Any) -> None:
        """Put a stand-in into the slot. `restore` undoes it exactly."""
        holder = self.holder
        self._before = holder.get(self.key, _NO_ATTRIBUTE) if isinstance(holder, dict) else holder[self.key]
        holder[self.key] = value

    def restore(self) -> None:
        """Put back what was there, or nothing where nothing was."""
        holder = self.holder
        if self._before is _NO_ATTRIBUTE:
            holder.pop(self.key, None)
        else:
            holder[self.key] = self._before
        self._before = _NO_ATTRIBUTE

    def __getstate__(self) -> dict[str, Any]:
        return {"owner": self.owner, "key": self.key, "child": self.child}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["owner"], state["key"], child=state["child"])  # type: ignore[misc]


class _HeldTuple:
    """A tuple of callables that an object holds; remade while any of its places has a stand-in."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name
        self.original: tuple[Any, ...] | None = None
        self.stand_in_count = 0

    def current_tuple(self) -> tuple[Any, ...]:
        held: tuple[Any, ...] = self.owner.__dict__[self.name]
        return held


class TupleSlot(Slot):
    """A place in a tuple. When the last stand-in has gone, the owner has the very tuple that it had."""

    def __init__(self, held: _HeldTuple, key: int) -> None:
        super().__init__(held.owner, key)
        self._held = held

    @property
    def identity(self) -> tuple[int, str | int]:
        """Two slots are the same place when these are equal."""
        return (id(self.owner), f"{self._held.name}[{self.key}]")

    def get(self) -> Any:
        """Return what the slot holds."""
        return self._held.current_tuple()[int(self.key)]

    def put(self, value: Any) -> None:
        """Put a stand-in into the slot. `restore` undoes it exactly."""
        held, place = self._held, int(self.key)
        before = held.current_tuple()
        if not held.stand_in_count:
            held.original = before
        held.stand_in_count += 1
        held.owner.__dict__[held.name] = (*before[:place], value, *before[place + 1 :])

    def restore(self) -> None:
        """Put back what was there."""
        held = self._held
        held.stand_in_count -= 1
        if not held.stand_in_count:
            held.owner.__dict__[held.name] = held.original

    def __getstate__(self) -> dict[str, Any]:
        return {"held": self._held, "key": self.key}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["held"], state["key"])  # type: ignore[misc]


class SlotSnapshot:
    """What sat in the slots when the stages were looked for: a stand-in is for that, and for nothing put there since."""

    def __init__(self) -> None:
        self._values: list[tuple[Slot, Any, Any]] = []
        self._lengths: list[tuple[Any, int]] = []

    def add_value(self, slot: Slot, value: Any, stand_in: Any = None) -> None:
        """Add a slot, what it holds, and its stand-in during a visit if that is not a `StageStandIn`."""
        self._values.append((slot, value, stand_in))

    def add_children(self, slots: list[Slot]) -> None:
        """Add the slots of one container: it has no others."""
        if slots and not isinstance(slots[0], TupleSlot):
            self._lengths.append((slots[0].holder, len(slots)))

    def slots(self) -> list[Slot]:
        """Return every slot that was looked at."""
        return [slot for slot, _, _ in self._values]

    def lengths(self) -> list[tuple[Any, int]]:
        """Return the containers, each with the number of its places."""
        return self._lengths

    def held_values(self) -> list[Any]:
        """Return everything that sat in the slots."""
        return [value for _, value, _ in self._values]

    def add(self, other: SlotSnapshot) -> None:
        """Add what was found elsewhere."""
        self._values += other._values
        self._lengths += other._lengths

    def is_current(self) -> bool:
        """Return whether every slot holds what it held; another visit's stand-in stands for that."""
        try:
            for slot, value, other in self._values:
                # Asked before each visit, and nearly always so.
                if (now := slot.get()) is not value and not _is_same(now, value, other):
                    return False
            return all(len(holder) == length for holder, length in self._lengths)
        except (AttributeError, LookupError, TypeError):
            return False


def _is_same(now: Any, before: Any, stand_in: Any = None) -> bool:
    if now is before or (now is stand_in and now is not None):
        return True
    if type(now) is MethodType:
        # A new object each time it is read.
        return bool(now == before)
    return type(now) is StageStandIn and _is_same(now._audit_target, before)


def tuple_slots(owner: Any, name: str) -> list[Slot]:
    """Return a slot for each place of a tuple that an object holds in an attribute."""
    held = _HeldTuple(owner, name)
    return [TupleSlot(held, place) for place in range(len(held.current_tuple()))]
