"""Values between 0 and 1 that were taken for logits: they may be probabilities, and then their grades are wrong.

Logits of an untrained model may lie there by chance, so nothing is said at once: later values may leave the interval, or the
loop may use the output as logits (`cross_entropy`, `softmax`) or as probabilities (`binary_cross_entropy`).
"""

from __future__ import annotations

import torch

from audit.models.meaning import lies_inside

#: What is said of values that may be probabilities.
DOUBT = (
    "every value lies between 0 and 1, but nothing shows that they are probabilities. They are graded as logits. "
    "Say what they are with output (--output): sigmoid, probabilities, logits, regression or embedding."
)
#: Fewer values say nothing.
_FEWEST = 12
#: After so many samples it is said, though more may come.
_MANY_SAMPLES = 256


def is_enough(count: int) -> bool:
    """Return whether so many values between 0 and 1 are worth a sentence."""
    return count >= _FEWEST


class ScaleDoubt:
    """Whether the values of one output, which were taken for logits, may be probabilities."""

    def __init__(self) -> None:
        self.is_open = True
        self._values = 0
        self._samples = 0
        self._is_used_as_probabilities = False

    def close(self) -> None:
        """Say nothing: the values are logits, or they were never taken for them."""
        self.is_open = False

    def note_use(self, *, as_logits: bool) -> None:
        """Take in what the loop uses the output for."""
        if as_logits:
            self.close()
        else:
            self._is_used_as_probabilities = True

    def add(self, values: torch.Tensor) -> None:
        """Take in values (N, C)."""
        if not lies_inside(values):
            self.close()
        self._values += values.numel()
        self._samples += len(values)

    def take(self, *, is_last: bool) -> str | None:
        """Return what is to be said, once: when enough was seen, or at the end of the run (`is_last`)."""
        is_due = is_last or self._is_used_as_probabilities or self._samples >= _MANY_SAMPLES
        if not self.is_open or not is_due or not is_enough(self._values):
            return None
        self.close()
        return DOUBT
