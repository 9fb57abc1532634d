"""Keeps the recording's threads still while a process forks.

A loader that forks its workers copies every lock as it is at that instant. A thread that is inside Arrow then would leave
its locks taken in the worker, without end, which packs rows with Arrow: the user's loop would hang. So the threads work under
these two locks, and a fork waits for both.
"""

from __future__ import annotations

import os
import threading

#: Held while rows that came through a pipe are taken in. Taken before WRITE_LOCK, never after it.
DELIVERY_LOCK = threading.Lock()
#: Held while rows are written.
WRITE_LOCK = threading.Lock()

#: A fork waits no longer than this: a store on a dead network mount must not stop the user's loop from starting.
_PATIENCE = 10.0
_taken_locks: list[threading.Lock] = []


def _lock_before_fork() -> None:
    _taken_locks.extend(lock for lock in (DELIVERY_LOCK, WRITE_LOCK) if lock.acquire(timeout=_PATIENCE))


def _unlock_after_fork() -> None:
    while _taken_locks:
        _taken_locks.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock_before_fork, after_in_parent=_unlock_after_fork, after_in_child=_unlock_after_fork)
