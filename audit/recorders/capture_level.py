"""How much is kept of each stage output."""

from __future__ import annotations

import torch

from audit.records import LEVELS, Level


class CaptureLevel:
    """How much is kept of each output, in memory that all workers share and the main process may lower."""

    def __init__(self, level: Level) -> None:
        self._shared = torch.tensor([LEVELS.index(level)], dtype=torch.uint8)
        self._shared.share_memory_()  # type: ignore[no-untyped-call]

    def get(self) -> Level:
        """Return the level in force."""
        return LEVELS[int(self._shared[0])]

    def lower(self, level: Level) -> None:
        """Keep less from now on."""
        self._shared[0] = min(int(self._shared[0]), LEVELS.index(level))
