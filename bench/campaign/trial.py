"""What every member of the campaign is given: a random stream, a folder, a time limit, and a place for its counts."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path


class Trial:
    """One member's run. `tried` and `bad` are counted for the table; `counts` holds what else is worth telling."""

    def __init__(self, seed: int, seconds: float, most: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.counts: Counter[str] = Counter()
        self.tried = 0
        self.bad = 0
        self._most = most
        self._begun = time.monotonic()
        self._end = self._begun + seconds

    def more(self) -> bool:
        """Return whether there is time for another try, and the goal is not reached."""
        return self.tried < self._most and time.monotonic() < self._end

    def seconds_left(self) -> float:
        """Return how long the member may still run."""
        return max(0.0, self._end - time.monotonic())

    @property
    def seconds(self) -> float:
        """How long the member has run."""
        return time.monotonic() - self._begun

    def fail(self, what: str) -> None:
        """Count something that must not happen, and say what it was."""
        self.bad += 1
        if self.bad <= 20:
            print(f"  BAD: {what}", file=sys.stderr, flush=True)
