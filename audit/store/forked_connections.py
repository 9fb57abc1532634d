"""Keeps the connections of a process to DuckDB in every process that is forked from it.

A worker of a loader inherits the garbage of its parent, and collects it: maybe in its first instruction. A connection that is
destroyed there waits for threads that are not in the process, which then hangs or is ended. So connections are
held from before the fork, and a forked process never lets go of them.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

import duckdb


class Owner(Protocol):
    """What has a connection of its own."""

    @property
    def connection(self) -> duckdb.DuckDBPyConnection: ...


_OWNERS: set[weakref.ref[Owner]] = set()
_HELD_CONNECTIONS: list[list[duckdb.DuckDBPyConnection]] = []


def keep_when_forked(owner: Owner) -> None:
    """Keep the connection of an object in forked processes, for as long as the object is there in this one."""
    _OWNERS.add(weakref.ref(owner, _OWNERS.discard))


def _hold() -> None:
    owners = [reference() for reference in list(_OWNERS)]
    _HELD_CONNECTIONS.append([owner.connection for owner in owners if owner is not None])


def _let_go() -> None:
    _HELD_CONNECTIONS.pop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_let_go)
