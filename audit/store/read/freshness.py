"""A reader that is never much older than the store: it is opened again when something was committed.

A reader that was handed out stays as it was, so that an answer never mixes two commits. Nothing is
watched in the background: the caller pays for the look, at most once per interval.
"""

from __future__ import annotations

import hashlib
import threading
import time
from typing import Generic, TypeVar

from audit.store.commits import RUNS_FOLDER, list_logged_commits, manifest_path
from audit.store.filesystem import Filesystem
from audit.store.manifest import lock_path
from audit.store.read.reader import Reader

R = TypeVar("R", bound=Reader)


class NewestReader(Generic[R]):
    """The newest reader of one store."""

    def __init__(self, kind: type[R], location: str, *, interval: float = 1.0) -> None:
        self._kind = kind
        self._location = location
        self._shortest = self._interval = interval
        self._lock = threading.Lock()
        # Looked at first, read then: what is committed in between is seen by the next look.
        self._state = commit_state(kind(location))
        self._reader: R = self._open()
        self._looked = time.monotonic()

    def reader(self) -> R:
        """Return the store as committed at most `interval` seconds ago."""
        with self._lock:
            begun = time.monotonic()
            if begun - self._looked >= self._interval:
                state = commit_state(self._reader)
                if state != self._state:
                    # The old one is not closed: another thread may still be reading from it.
                    self._reader = self._open()
                    self._state = state
                self._looked = time.monotonic()
                # Looking at many runs takes a while: then it is done more rarely.
                self._interval = max(self._shortest, 20 * (self._looked - begun))
            return self._reader

    def expire(self) -> None:
        """Look at the store at the next call, however short ago the last look was."""
        with self._lock:
            self._looked = float("-inf")

    def _open(self) -> R:
        reader = self._kind(self._location)
        reader.sql("SELECT 1")  # connects now, so that no two threads do it at once
        return reader


def commit_state(reader: Reader) -> tuple[object, ...]:
    """Return a value that changes when a run was begun, committed, finished, checked, compacted or removed."""
    filesystem = reader.filesystem
    open_ended = {run.run_id for run in reader.runs() if run.status != "complete"}
    run_ids = [name for name in filesystem.list(RUNS_FOLDER) if not name.startswith(".")]
    contents = filesystem.read_each([manifest_path(run_id) for run_id in run_ids])
    # A writer that dies says nothing, but lets go of its lock.
    return tuple(
        (run_id, _state(data), *(_progress(filesystem, run_id) if run_id in open_ended else ()))
        for run_id, data in zip(run_ids, contents, strict=True)
    )


def _progress(filesystem: Filesystem, run_id: str) -> tuple[object, ...]:
    """Return what changes about a run that is being written: its log, and whether its writer lives."""
    return tuple(list_logged_commits(filesystem, run_id)[-1:]), filesystem.is_locked(lock_path(run_id))


def _state(manifest: bytes | Exception) -> object:
    # One that cannot be read must not hide the others: the reader tells what is wrong with it.
    return type(manifest) if isinstance(manifest, Exception) else hashlib.sha256(manifest).digest()
