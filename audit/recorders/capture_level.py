"""How much is kept of each stage output."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

import torch

from audit.records import LEVELS, Level


class CaptureLevel:
    """How much is kept of each output, in memory that all workers share and the main process may lower."""

    def __init__(self, level: Level) -> None:
        self._shared = torch.tensor([LEVELS.index(level)], dtype=torch.uint8)
        # Where shared memory is full, workers keep the level that they begin with.
        with contextlib.suppress(RuntimeError):
            self._shared.share_memory_()  # type: ignore[no-untyped-call]
        self._memory: ctypes.c_uint8 | None = None

    def get(self) -> Level:
        """Return the level in force."""
        # By its address: an index into a tensor takes several microseconds, and every visit asks.
        memory = self._memory
        if memory is None:
            memory = self._memory = ctypes.c_uint8.from_address(self._shared.data_ptr())
        return LEVELS[memory.value]

    def __getstate__(self) -> dict[str, Any]:
        return {"_shared": self._shared, "_memory": None}

    def lower(self, level: Level) -> None:
        """Keep less from now on."""
        self._shared[0] = min(int(self._shared[0]), LEVELS.index(level))
