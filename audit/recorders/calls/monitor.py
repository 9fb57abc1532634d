"""Reports which instructions of some functions run for the first time, by `sys.monitoring` (Python 3.12 and newer).

Each instruction is reported until its watcher has seen enough of it; from then on it runs as if nothing had been there.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any, Protocol

#: None before Python 3.12.
_SYS_MONITORING: Any = getattr(sys, "monitoring", None)
#: Those of 0 to 5 that Python sets aside for no kind of tool.
_FREE_TOOLS = (4, 3)
_NAME = "audit"


class Watcher(Protocol):
    """Takes the events of the functions that it watches. It must raise nothing: that would be raised in the function."""

    def on_instruction(self, frame: FrameType, offset: int) -> bool:
        """Take an instruction that is about to run; return whether it is of interest again."""

    def on_line(self, frame: FrameType) -> None:
        """Take the beginning of a line, in code that `follow` was called for."""

    def on_exit(self, frame: FrameType, value: Any) -> None:
        """Take what a function returns or yields, in code that `follow` was called for."""


class Monitor:
    """The one tool of this process, with a watcher for each function that is watched."""

    def __init__(self) -> None:
        self._tool: int | None = None
        #: By the identity of the code, which is kept so that no other code takes it.
        self._watched: dict[int, tuple[CodeType, Watcher]] = {}

    def watch(self, codes: list[CodeType], watcher: Watcher) -> bool:
        """Report to `watcher` which instructions of this code run; return False where other tools hold what this needs."""
        if self._tool is None and not self._begin():
            return False
        for code in codes:
            self._watched[id(code)] = code, watcher
            self._set(code, _SYS_MONITORING.events.INSTRUCTION)
        return True

    def has_events(self, watcher: Watcher) -> bool:
        """Return whether a watcher still gets events."""
        return any(one is watcher for _, one in self._watched.values())

    def follow(self, code: CodeType, *, lines: bool) -> None:
        """Report also the lines of this code, and what its functions return; or no longer."""
        if id(code) in self._watched:
            events = _SYS_MONITORING.events
            more = events.LINE | events.PY_RETURN | events.PY_YIELD if lines else 0
            self._set(code, events.INSTRUCTION | more)

    def release(self) -> None:
        """Watch nothing more, and leave nothing behind."""
        watched, self._watched = self._watched, {}
        if self._tool is None:
            return
        for code, _ in watched.values():
            self._set(code, 0)
        if _SYS_MONITORING.get_tool(self._tool) == _NAME:
            for event in self._callbacks():
                _SYS_MONITORING.register_callback(self._tool, event, None)
            _SYS_MONITORING.free_tool_id(self._tool)
        self._tool = None

    def _begin(self) -> bool:
        if _SYS_MONITORING is None:
            return False
        tool = next((number for number in _FREE_TOOLS if _SYS_MONITORING.get_tool(number) is None), None)
        if tool is None:
            return False
        _SYS_MONITORING.use_tool_id(tool, _NAME)
        self._tool = tool
        for event, callback in self._callbacks().items():
            _SYS_MONITORING.register_callback(tool, event, callback)
        return True

    def _callbacks(self) -> dict[int, Any]:
        events = _SYS_MONITORING.events
        return {
            events.INSTRUCTION: self._on_instruction,
            events.LINE: self._on_line,
            events.PY_RETURN: self._on_exit,
            events.PY_YIELD: self._on_exit,
        }

    def _set(self, code: CodeType, events: int) -> None:
        if self._tool is not None and _SYS_MONITORING.get_tool(self._tool) == _NAME:
            _SYS_MONITORING.set_local_events(self._tool, code, events)

    def _on_instruction(self, code: CodeType, offset: int) -> Any:
        _, watcher = self._watched.get(id(code), (None, None))
        if watcher is None or not watcher.on_instruction(sys._getframe(1), offset):
            return _SYS_MONITORING.DISABLE
        return None

    def _on_line(self, code: CodeType, _: int) -> None:
        if id(code) in self._watched:
            self._watched[id(code)][1].on_line(sys._getframe(1))

    def _on_exit(self, code: CodeType, _: int, value: Any) -> None:
        if id(code) in self._watched:
            self._watched[id(code)][1].on_exit(sys._getframe(1), value)


#: The tool of this process.
MONITOR = Monitor()


def can_monitor() -> bool:
    """Return whether this version of Python can tell which instructions run."""
    return _SYS_MONITORING is not None
