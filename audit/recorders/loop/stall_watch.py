"""Samples of a user's own loop that take too long: a warning, and nothing else.

The workers are the user's. Ending one would end the loop with an error that is not theirs.
"""

from __future__ import annotations

from audit.recorders.activity import Activity
from audit.recorders.problems import Problems


class StallWatch:
    """Warns once of each sample that takes longer than allowed."""

    def __init__(self, limit: float, problems: Problems) -> None:
        self._limit = limit
        self._problems = problems
        self._activities: list[Activity] = []
        self._reported: set[tuple[int, float]] = set()

    def new_activity(self) -> Activity:
        """Return where the processes of one more loader or dataset note what they are doing."""
        self._activities.append(Activity())
        return self._activities[-1]

    def look(self) -> None:
        """Warn of samples that take too long; called about once a second while no rows arrive."""
        if not self._limit:
            return
        for activity in self._activities:
            for sample in activity.current_samples():
                if sample.seconds < self._limit or (sample.process, sample.begun) in self._reported:
                    continue
                self._reported.add((sample.process, sample.begun))
                self._problems.mark(
                    f"Sample {sample.index} has taken {sample.seconds:.0f} s so far, in stage {sample.stage}, in process "
                    f"{sample.process}. The loop waits for it; what was recorded before is committed."
                )
