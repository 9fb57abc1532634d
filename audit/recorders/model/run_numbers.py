"""The numbers that batches and model steps of a run have."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class RunNumbers:
    """The numbers that the next batch and the next step of one run get."""

    step: int = 0
    #: By epoch, how many batches it has so far. Loaders of one epoch share the numbers, so that each stands for one batch.
    batches: dict[int, int] = field(default_factory=dict)

    def take_batch(self, epoch: int) -> int:
        """Return the number of a new batch of an epoch; the first of each epoch is 0."""
        number = self.next_batch(epoch)
        self.batches[epoch] = number + 1
        return number

    def next_batch(self, epoch: int) -> int:
        """Return the number that the next batch of an epoch will have."""
        return self.batches.get(epoch, 0)

    def take_step(self) -> int:
        """Return the number of a new step."""
        number, self.step = self.step, self.step + 1
        return number
