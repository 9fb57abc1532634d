"""How much of each output is kept, within a budget: an estimate first, then the sum as it grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from audit.records import Level


@dataclass(frozen=True, slots=True)
class Decision:
    """A level, and the sentence that says why."""

    level: Level
    why: str

    def __str__(self) -> str:
        return f"{self.level} ({self.why})" if self.why else self.level


def decide(asked: str, bytes_per_sample: float | None, samples: int, budget: int) -> Decision:
    """Decide how much is kept: `auto` is `full` while the estimate fits the budget, else `preview`."""
    if asked != "auto":
        return Decision(cast(Level, asked), "as asked")
    if bytes_per_sample is None:
        return Decision("preview", "no sample could be read to estimate from")
    estimate = int(bytes_per_sample * samples)
    if estimate <= budget:
        return Decision(
            "full", f"auto: about {format_bytes(estimate)} for {samples:,} samples fit {format_bytes(budget)}"
        )
    return Decision(
        "preview",
        f"auto: full would take about {format_bytes(estimate)} for {samples:,} samples, over {format_bytes(budget)}",
    )


def output_level(level: Level, bytes_per_row: float, share: float | None) -> Level:
    """Return how much is kept of what a model returned: all of it if it takes at most half of a visit's share of the budget.

    `share` is None where the budget does not count. The other half is for the stages, whose estimate comes first.
    """
    is_small = share is None or 2 * bytes_per_row <= share
    return level if is_small or level != "full" else "preview"


class Budget:
    """What payloads have taken so far; `spend` says once when the limit is passed."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._used = 0

    def spend(self, count: int) -> bool:
        """Add to the sum; True the first time that it passes the limit."""
        before = self._used
        self._used += count
        return self._limit is not None and before <= self._limit < self._used


def format_bytes(count: float) -> str:
    """Return a number of bytes in a unit that is easy to read."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
