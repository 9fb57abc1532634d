"""How much of each stage's output a recording keeps: chosen from the first batch, lowered when the budget is spent."""

from __future__ import annotations

from audit.errors import UsageError
from audit.recorders.capture import Budget, decide, output_level
from audit.recorders.capture_level import CaptureLevel
from audit.recorders.problems import Problems
from audit.records import LEVELS, Level, Run


class CapturePlan:
    """The level in force, which all workers share."""

    def __init__(self, asked: str, limit: int, run: Run, problems: Problems) -> None:
        if asked not in ("auto", *LEVELS):
            raise UsageError(f"capture cannot be {asked!r}.", hint=f"Choose one of auto, {', '.join(LEVELS)}.")
        self.level = CaptureLevel("full" if asked == "auto" else asked)  # type: ignore[arg-type]
        self._auto = asked == "auto"
        self._decided = False
        self._expected = 0
        self._limit = limit
        self._budget = Budget(limit)
        self._run = run
        self._problems = problems

    def spend(self, payload_bytes: int, count: int, expected: int) -> None:
        """Count payloads that arrived. The first ones decide, from an estimate for the `expected` visits, the level of capture."""
        if not self._auto:
            return
        self._expected = expected
        passed = self._budget.spend(payload_bytes)
        if not self._decided:
            self._decided = True
            decision = decide("auto", payload_bytes / max(count, 1), expected, self._limit)
            self.level.lower(decision.level)
            self._run.capture = str(decision)
        elif passed:
            self._keep_previews()

    def current_level(self) -> Level:
        """Return how much of each stage's output is kept now."""
        return self.level.get()

    def output_level(self, bytes_per_row: float) -> Level:
        """Return how much is kept of what a model returned for one visit."""
        share = self._limit / self._expected if self._auto and self._expected else None
        return output_level(self.level.get(), bytes_per_row, share)

    def spend_outputs(self, payload_bytes: int) -> None:
        """Add what was kept of a model's outputs."""
        if self._auto and self._budget.spend(payload_bytes):
            self._keep_previews()

    def _keep_previews(self) -> None:
        if self.level.get() == "full":
            self.level.lower("preview")
            self._problems.mark("The capture budget was reached: later outputs are kept as previews.", loud=False)
