"""What each process of a loader is doing now: the sample, the stage, and since when.

It lies in memory that the processes share, so that the main process can read it while a worker hangs, or is stopped and
can answer nothing. Times are those of the system's monotonic clock, which is one for all processes of a machine.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import get_worker_info

#: Process, sample, begin of the sample, whether a sample is being made, length of the stage's name.
_HEAD = struct.Struct("=qqdBB")
_SAMPLE = struct.Struct("=qqd")
_NAME_BYTES = 90
_PLACE_BYTES = 128
#: The main process has the first place; a worker the one after its number.
_PLACES = 257


def note_of(name: str) -> bytes:
    """Return what is noted of a stage: that a sample is being made, the length of the name, and the name."""
    data = name.encode()[:_NAME_BYTES]
    return bytes((1, len(data))) + data


#: What is noted before the first stage, with a number that no stage has, and what is noted after it.
_LOADING_STATE = 2
_LOAD, _DATASET = bytes((_LOADING_STATE, 4)) + b"load", note_of("dataset")


def _forget_places() -> None:
    for activity in _ACTIVITIES:
        activity.place = None


os.register_at_fork(after_in_child=_forget_places)


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
        self._begin_process()

    def _begin_process(self) -> None:
        self._process = 0
        self._sample: memoryview | None = None
        #: Where this process notes the stage, behind the sample; None until it makes one.
        self.place: memoryview | None = None
        _ACTIVITIES.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {"_shared": self._shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._shared = state["_shared"]
        self._begin_process()

    # -- in the process that makes samples ---------------------------------------------------------

    def _find_place(self) -> memoryview:
        worker = get_worker_info()
        at = _PLACE_BYTES * (0 if worker is None else 1 + worker.id % (_PLACES - 1))
        own = _bytes_of(self._shared)[at : at + _PLACE_BYTES]
        self._process, self._sample, self.place = os.getpid(), own[: _SAMPLE.size], own[_SAMPLE.size :]
        return self.place

    def prepare(self) -> None:
        """Find the place of this process, where it has none yet."""
        if self.place is None:
            self._find_place()

    def begin(self, index: int) -> None:
        """Note that a sample is begun: the dataset's own code runs, which loads it. values/_visit.h does the same."""
        place = self.place
        if place is None:
            place = self._find_place()
        place[0] = 0
        _SAMPLE.pack_into(self._sample, 0, self._process, index, time.monotonic())  # type: ignore[arg-type]
        place[: len(_LOAD)] = _LOAD

    def enter(self, note: bytes) -> bytes:
        """Note that a stage begins, as `note_of` gives it; return what `leave` is to be given."""
        place = self.place
        if place is None:
            return b""
        before = bytes(place)
        place[: len(note)] = note
        return before

    def leave(self, before: bytes) -> None:
        """Note that the stage has returned or failed. The compiled loops do as these two do (values/_stage.h)."""
        if self.place is not None and before:
            note = _DATASET if before[0] == _LOADING_STATE else before
            self.place[: len(note)] = note

    def end(self) -> None:
        """Note that the sample is made, or has failed."""
        if self.place is not None:
            self.place[0] = 0

    # -- in the process that watches ---------------------------------------------------------------

    def current_samples(self) -> list[CurrentSample]:
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


#: Those of this process: a forked one finds places of its own.
_ACTIVITIES: weakref.WeakSet[Activity] = weakref.WeakSet()


def _bytes_of(shared: torch.Tensor) -> memoryview:
    array: Any = shared.numpy()
    return memoryview(array)
