"""The numbers that batches and model steps of a run have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class RunNumbers:
    """The numbers that the next batch and the next step of one run get."""

    batch: int = 0
    step: int = 0

    def take_batch(self) -> int:
        """Return the number of a new batch."""
        number, self.batch = self.batch, self.batch + 1
        return number

    def take_step(self) -> int:
        """Return the number of a new step."""
        number, self.step = self.step, self.step + 1
        return number
