"""Further calls of one stage in one visit, as with two views of a picture: each has an output of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from audit.recorders.calls.observed_calls import TARGET_PREFIX
from audit.records import Stage


@dataclass(slots=True, eq=False)
class RepeatedCall:
    """A further call of a stage in one visit: its output is one of its own."""

    stage: Stage
    #: 2 for the second call.
    number: int
    is_repeated: ClassVar[bool] = True
    #: Whether it led to the label and not to the model's input.
    is_target: bool = False

    @property
    def path(self) -> str:
        """The path of this call as a stage."""
        prefix = TARGET_PREFIX if self.is_target and not self.stage.is_target else ""
        return f"{prefix}{self.stage.path}#{self.number}"

    def describe(self) -> Stage:
        """Return the row of `stages` for this call."""
        return replace(self.stage, stage=0, path=self.path)


def inside_stage(name: str) -> Stage:
    """Return the row of `stages` for a stage that the dataset's own code names with `audit.stage`."""
    return Stage(0, f"inside.{name}", name, f"audit.stage.{name}", "{}")
