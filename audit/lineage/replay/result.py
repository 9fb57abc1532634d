"""The result of a replay: counts, the visits that differ, and how far logits are apart."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from audit.display import NotebookView
from audit.lineage.replay.reasons import Reason
from audit.plainjson import JsonObject

#: How far logits may differ, absolutely and relative to the recorded ones: other batch sizes and machines round differently.
TOLERANCE = 1e-4
#: How many differences are explained and listed: each may take another replay.
MOST_LISTED = 1000


@dataclass(frozen=True, slots=True)
class VisitMismatch:
    """One visit that did not come out as recorded: the first stage that differs, and why."""

    index: int
    epoch: int
    visit: int
    source: str | None
    stage: int | None
    name: str
    reason: Reason
    max_abs_diff: float | None
    detail: str


@dataclass(slots=True)
class ModelComparison:
    """Logits computed again, against those recorded."""

    checkpoint: Literal["unchanged", "changed", "unknown"]
    compared: int = 0
    beyond: list[int] = field(default_factory=list)
    max_abs_diff: float = 0.0
    tolerance: float = TOLERANCE


@dataclass(slots=True)
class Replay(NotebookView):
    """The result of a replay. Made by `Store.replay`."""

    run_id: str
    checked: int = 0
    identical: int = 0
    stage_outputs: int = 0
    #: How many of them have the recorded digest; more than the identical visits have, as a visit differs from one stage on.
    identical_outputs: int = 0
    different: list[VisitMismatch] = field(default_factory=list)
    model: ModelComparison | None = None
    #: By the stage's path and name, how many outputs could not be compared: they have no digest, or were made from a whole
    #: batch. A visit that has no others is not `checked`.
    not_compared: dict[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether everything came out as recorded."""
        # Nothing compared is nothing proved.
        return 0 < self.checked == self.identical and (self.model is None or not self.model.beyond)

    def as_json(self) -> JsonObject:
        """Return what `audit replay --json` prints."""
        shown: dict[str, Any] = {
            "run_id": self.run_id,
            "checked": self.checked,
            "identical": self.identical,
            "stage_outputs": self.stage_outputs,
            "identical_outputs": self.identical_outputs,
            "different": [asdict(item) for item in self.different],
            "not_compared": self.not_compared,
        }
        return shown | ({"model": asdict(self.model)} if self.model else {})
