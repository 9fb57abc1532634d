"""What each stage of a visit reads and writes, and the row that it leaves.

The compiled loops have classes of the same names, whose attributes they find without looking names up (values/_state.h).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from audit.recorders.activity import Activity
from audit.records import Level
from audit.values import native as loops

if TYPE_CHECKING:
    from typing import Literal

    from audit import values
    from audit.recorders.calls.call_stages import CallStages
    from audit.recorders.visit.stage_row import Row
    from audit.values.base import Facts

if TYPE_CHECKING or loops.native is None:

    class VisitState:
        """The attributes; those without a value are set when a visit is made."""

        rows: dict[int, Row]
        _level: Level | Literal["verify"]
        #: The stages that ran, in order.
        _ran: list[int]
        #: By ordinal, what a stage of the pipeline was given (the value, or the ids of all in it) and returned.
        _passed: dict[int, tuple[Any, Any]]
        #: What the last stage returned, its digest and its row.
        _value: Any = None
        _digest: str | None = None
        _last: Row | None = None
        #: Nanoseconds that were spent on describing values, and not by the pipeline.
        _overhead = 0
        #: Where other processes can read what this one is doing.
        activity: Activity | None = None
        #: Knows which calls and items of the dataset are observed.
        follower: CallStages | None = None

    class RowState:
        """What is known of one stage of one visit."""

        __slots__ = ("changed", "facts", "full", "microseconds", "params", "preview", "shared", "target", "version")

        def __init__(
            self, facts: Facts, changed: bool | None, params: str | None, microseconds: float | None, /
        ) -> None:
            self.facts = facts
            self.changed = changed
            self.params = params
            self.microseconds = microseconds
            #: The target beside the picture (see values/joint_value.py).
            self.target: str | None = None
            #: How often the value had been changed in place when it was described; None where it does not count that.
            self.version: int | None = None
            #: The payload is that of the nearest earlier stage with the same digest.
            self.shared = False
            self.preview: values.Preview | None = None
            self.full: tuple[str, values.EncodedValue] | None = None

else:
    VisitState, RowState = loops.native.VisitState, loops.native.RowState
