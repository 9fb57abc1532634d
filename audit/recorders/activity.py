"""What each process of a loader is doing now: the sample, the stage, and since when.

It lies in memory that the processes share, so that the main process can read it while a worker hangs, or is stopped and
can answer nothing. Times are those of the system's monotonic clock, which is one for all processes of a machine.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import get_worker_info

#: Process, sample, begin of the sample, whether a sample is being made, length of the stage's name.
_HEAD = struct.Struct("<qqdBB")
_SAMPLE = struct.Struct("<qqd")
_NAME_BYTES = 90
_PLACE_BYTES = 128
#: The main process has the first place; a worker the one after its number.
_PLACES = 257

#: Another number in each process that was forked; asking the system for the process costs more than a whole note.
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


@functools.lru_cache(256)
def _encode(name: str) -> bytes:
    """Return what is noted of a stage: that a sample is being made, the length of the name, and the name."""
    data = name.encode()[:_NAME_BYTES]
    return bytes((1, len(data))) + data


_LOAD, _DATASET = _encode("load"), _encode("dataset")


@dataclass(frozen=True, slots=True)
class CurrentSample:
    """The sample that a process is making."""

    process: int
    index: int
    stage: str
    #: Seconds since the sample was begun.
    seconds: float
    begun: float


class Activity:
    """Notes of what the processes of one dataset are doing."""

    def __init__(self) -> None:
        self._shared = torch.zeros(_PLACES * _PLACE_BYTES, dtype=torch.uint8)
        # Where shared memory is full, only this process sees what it is doing; a run without workers needs no more.
        with contextlib.suppress(RuntimeError):
            self._shared.share_memory_()  # type: ignore[no-untyped-call]
        self._forget_process()

    def _forget_process(self) -> None:
        self._process = 0
        self._forks = -1
        self._memory: memoryview | None = None
        self._offset = 0
        #: The stages that run, the innermost last.
        self._notes: list[bytes] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"_shared": self._shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._shared = state["_shared"]
        self._forget_process()

    # -- in the process that makes samples ---------------------------------------------------------

    def begin(self, index: int) -> None:
        """Note that a sample is begun: the dataset's own code runs, which loads it."""
        if self._forks != _forks:
            self._forget_process()
            self._process, self._forks = os.getpid(), _forks
            worker = get_worker_info()
            self._offset = _PLACE_BYTES * (0 if worker is None else 1 + worker.id % (_PLACES - 1))
            self._memory = _bytes_of(self._shared)
        memory, at = self._memory, self._offset
        assert memory is not None
        memory[at + _SAMPLE.size] = 0
        _SAMPLE.pack_into(memory, at, self._process, index, time.monotonic())
        self._notes = [_LOAD]
        memory[at + _SAMPLE.size : at + _SAMPLE.size + len(_LOAD)] = _LOAD

    def enter(self, stage: str) -> None:
        """Note that a stage begins."""
        note = _encode(stage)
        self._notes.append(note)
        if self._forks == _forks and self._memory is not None:
            at = self._offset + _SAMPLE.size
            self._memory[at : at + len(note)] = note

    def leave(self) -> None:
        """Note that the stage has returned or failed."""
        notes = self._notes
        if len(notes) > 2:
            notes.pop()
        elif notes:
            self._notes = notes = [_DATASET]
        if notes and self._forks == _forks and self._memory is not None:
            at, note = self._offset + _SAMPLE.size, notes[-1]
            self._memory[at : at + len(note)] = note

    def end(self) -> None:
        """Note that the sample is made, or has failed."""
        self._notes = []
        if self._forks == _forks and self._memory is not None:
            self._memory[self._offset + _SAMPLE.size] = 0

    # -- in the process that watches ---------------------------------------------------------------

    def current(self) -> list[CurrentSample]:
        """Return the samples that are being made, the longest first."""
        memory = _bytes_of(self._shared)
        now = time.monotonic()
        found = []
        for at in range(0, len(memory), _PLACE_BYTES):
            process, index, begun, is_busy, length = _HEAD.unpack_from(memory, at)
            if is_busy:
                name = bytes(memory[at + _HEAD.size : at + _HEAD.size + length]).decode(errors="replace")
                found.append(CurrentSample(process, index, name, now - begun, begun))
        return sorted(found, key=lambda sample: -sample.seconds)


def _bytes_of(shared: torch.Tensor) -> memoryview:
    array: Any = shared.numpy()
    return memoryview(array)
