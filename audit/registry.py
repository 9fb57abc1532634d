"""A table of names that plugins may extend, and that refuses two members of one name.

Built-ins register exactly as a plugin would; a plugin names an entry point in the registry's
group. Only installed packages count: `python -m audit` searches the working directory too, and what lies there is
nobody's choice. Entry points are looked for once, when a name is first asked for, so importing costs nothing.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from audit.errors import UsageError

T = TypeVar("T")


class Registry(Generic[T]):
    """Names to members, in the order they were registered."""

    def __init__(self, noun: str, group: str | None = None) -> None:
        self.noun = noun
        self._group = group
        self._members: dict[str, T] = {}
        self._plugins_loaded = group is None

    def add(self, name: str, member: T) -> T:
        """Register `member`; a name taken twice is an error, never a silent winner."""
        if name in self._members:
            raise UsageError(f"Two {self.noun}s are called {name!r}: {self._members[name]!r} and {member!r}.")
        self._members[name] = member
        return member

    def get(self, name: str) -> T:
        """Return what is registered under a name; raise an error that lists the nearest names."""
        self._load_plugins()
        try:
            return self._members[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._members, n=3)
            hint = f"Did you mean {', '.join(near)}?" if near else f"Known: {', '.join(self._members)}."
            raise UsageError(f"There is no {self.noun} called {name!r}.", hint=hint) from None

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter(self._members)

    def __contains__(self, name: object) -> bool:
        self._load_plugins()
        return name in self._members

    def values(self) -> list[T]:
        """Return every registered member, built-ins first."""
        self._load_plugins()
        return list(self._members.values())

    def _load_plugins(self) -> None:
        if self._plugins_loaded:
            return
        self._plugins_loaded = True
        for point in entry_points(group=self._group or ""):
            if _is_installed(point):
                self.add(point.name, point.load())


def _is_installed(point: EntryPoint) -> bool:
    """Return whether a package was installed, rather than merely found in the directory that somebody works in."""
    place = point.dist.locate_file("") if point.dist is not None else None
    return place is None or os.path.realpath(str(place)) != os.path.realpath(os.getcwd())
