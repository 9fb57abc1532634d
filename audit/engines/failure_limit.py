"""How many samples of a run may fail before the run itself counts as failed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from audit.errors import UsageError


@dataclass(frozen=True, slots=True)
class FailureLimit:
    """The most samples that may fail: a number of them, or a percentage of all."""

    value: float
    is_percentage: bool

    @classmethod
    def parse(cls, given: int | str) -> FailureLimit:
        """Read `10` or `2.5%`; raise UsageError for anything else."""
        match = re.fullmatch(r"\s*(\d+)\s*|\s*(\d+(?:\.\d+)?)\s*%\s*", str(given))
        if match is None or (match[2] and float(match[2]) > 100):
            raise UsageError(
                f"max_failures cannot be {given!r}.",
                hint="Give a number of samples, such as 10, or a share, such as 2%.",
            )
        return cls(float(match[1] or match[2]), match[2] is not None)

    def is_exceeded(self, failed: int, samples: int) -> bool:
        """Return whether so many failed samples are more than the limit allows."""
        return failed > (samples * self.value / 100 if self.is_percentage else self.value)

    def __str__(self) -> str:
        return f"{self.value:g}{'%' if self.is_percentage else ''}"
