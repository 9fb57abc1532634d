"""Finds changes of a value in code that only some items run, between the items whose calls are listed.

Instructions that ran while the first item was made are known. When another one runs, the variables of its function are compared before
and after it, up to the next line that is known. This needs Python 3.12 or newer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from audit.recorders.calls.callables import describe_code
from audit.recorders.calls.data_values import ids_in
from audit.recorders.calls.monitor import MONITOR
from audit.recorders.calls.rare_change import PassedObjects, RareChange, Variables, facts_of
from audit.recorders.stages.stand_in import current_visit

if TYPE_CHECKING:
    from audit.recorders.visit.visit import Visit

#: So often the same instructions are looked at, if they changed nothing.
_MOST_LOOKS = 64


class _Span:
    """Instructions that run one after the other in one function, and were not known."""

    __slots__ = ("after", "before", "earlier", "frame", "is_reported", "offsets")

    def __init__(self, frame: FrameType, visit: Visit) -> None:
        self.frame = frame
        self.before = facts_of(frame.f_code).variables_of(frame)
        #: The identities of what stages had returned.
        self.earlier: set[int] = set().union(*(ids_in(output) for _, output in visit.passed_values()))
        self.offsets: set[int] = set()
        #: What the variables held when a line began that may be known, and what stages had been given and returned by then.
        self.after: tuple[Variables, list[PassedObjects]] | None = None
        #: Whether a change was found in a function that these instructions called.
        self.is_reported = False

    def look(self, visit: Visit) -> tuple[Variables, list[PassedObjects]]:
        """Return what the variables hold now, and what stages were given and returned since the beginning."""
        passed = [one for one in visit.passed_values() if not ids_in(one[1]) <= self.earlier]
        return facts_of(self.frame.f_code).variables_of(self.frame), passed


class RareCode:
    """Watches the code of one dataset in one process."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        #: Whether what runs now is ordinary: the first item is being made.
        self._is_first = False
        #: Spans that have not ended, by the identity of their frame. They are of one visit.
        self._open: dict[int, _Span] = {}
        self._visit: Any = None
        self._looks: dict[tuple[int, int], int] = {}
        #: Where values were changed, with what, by the code and the first instruction.
        self._found: dict[tuple[int, int], str] = {}
        #: Why something could not be judged.
        self.problem: str | None = None

    def begin(self, codes: list[CodeType]) -> bool:
        """Watch code, and take what runs until `end_first` for ordinary; return False where that is not possible."""
        self._is_first = bool(codes) and MONITOR.watch(codes, self)
        return self._is_first

    def note_names(self, names: Mapping[CodeType, set[str]]) -> None:
        """Do nothing: the values of all variables are at hand while the code runs."""

    def end_first(self) -> None:
        """Say that the first item is made."""
        self._is_first = False

    @property
    def is_watching(self) -> bool:
        """Whether code is watched: a recording that ended may have ended that."""
        return MONITOR.has_events(self)

    def take(self) -> list[str]:
        """Return where values were changed, since this was asked last."""
        for span in list(self._open.values()):
            self._close(span)
        self._visit = None
        found = list(dict.fromkeys(self._found.values()))
        self._found.clear()
        return found

    # -- called by the monitor -------------------------------------------------------------------

    def on_instruction(self, frame: FrameType, offset: int) -> bool:
        """Take an instruction that has not run in the first item."""
        if self._is_first:
            return False
        visit = current_visit()
        if visit is None or visit.paused or (visit.calls is not None and visit.calls.is_inside_stage):
            return True
        try:
            return self._add(visit, frame, offset)
        except Exception as error:
            self.problem = self.problem or f"{type(error).__name__}: {error}"
            return False

    def on_line(self, frame: FrameType) -> None:
        """Take the beginning of a line after such an instruction."""
        span = self._open.get(id(frame))
        if span is None:
            return
        try:
            if span.after is None:
                # Whether the line is known is seen by the event that comes next.
                span.after = span.look(self._visit)
            else:
                self._end(span, None)
        except Exception as error:
            self._give_up(span, error)

    def on_exit(self, frame: FrameType, value: Any) -> None:
        """Take what the function returns or yields."""
        span = self._open.get(id(frame))
        if span is None:
            return
        try:
            self._end(span, value)
        except Exception as error:
            self._give_up(span, error)

    # -- spans -----------------------------------------------------------------------------------

    def _add(self, visit: Any, frame: FrameType, offset: int) -> bool:
        if visit is not self._visit:
            # Functions that ended with an error had no event of that.
            for left in list(self._open.values()):
                self._close(left)
            self._visit = visit
        span = self._open.get(id(frame))
        if span is None:
            looks = self._looks[id(frame.f_code), offset] = self._looks.get((id(frame.f_code), offset), 0) + 1
            if looks > _MOST_LOOKS:
                return False
            span = self._open[id(frame)] = _Span(frame, visit)
            MONITOR.follow(frame.f_code, lines=True)
        span.offsets.add(offset)
        span.after = None
        return True

    def _end(self, span: _Span, returned: Any) -> None:
        self._close(span)
        if span.is_reported:
            return
        frame, code = span.frame, span.frame.f_code
        if span.after is not None:
            returned = None
        after, passed = span.after or span.look(self._visit)
        change = RareChange(frame, span.offsets, span.before, self._dataset)
        if change.is_found(after, returned, span.earlier, passed):
            self._found[id(code), min(span.offsets)] = f"{describe_code(code)}, {change.describe()}"
            self._looks[id(code), min(span.offsets)] = _MOST_LOOKS
            for other in self._open.values():
                other.is_reported = True

    def _close(self, span: _Span) -> None:
        self._open.pop(id(span.frame), None)
        if not any(other.frame.f_code is span.frame.f_code for other in self._open.values()):
            MONITOR.follow(span.frame.f_code, lines=False)

    def _give_up(self, span: _Span, error: Exception) -> None:
        self.problem = self.problem or f"{type(error).__name__}: {error}"
        self._open.pop(id(span.frame), None)
