"""`audit.stage`: record a stage from inside a dataset that does its own preprocessing.

    with audit.stage("tokenise", text) as s:
        tokens = s.out(tokenise(text))

    @audit.stage
    def normalise(text): ...

Outside a recording both do nothing at all.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar, overload

from audit.errors import UsageError
from audit.recorders.stages.stand_in import current_visit

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_NO_VALUE = object()


class InsideStage:
    """One stage as a block of code; `out` says what came out of it."""

    def __init__(self, name: str, given: Any = None, *, is_function: bool = False) -> None:
        self._name = name
        #: Whether it is the whole of a function, all of whose arguments are seen.
        self._is_function = is_function
        self._given = given
        self._begun = 0
        self._output: Any = _NO_VALUE
        self._spent = 0

    def out(self, value: T) -> T:
        """Note the stage's output, and give it back."""
        self._output = value
        self._spent = time.perf_counter_ns() - self._begun
        return value

    def __enter__(self) -> InsideStage:
        self._output = _NO_VALUE
        visit = current_visit()
        if visit is not None and self._given is not None:
            visit.note_given((self._given,), is_sole=True)
        if visit is not None and visit.follower is not None and (calls := visit.follower.calls_of(visit)) is not None:
            # What the block calls is part of this stage.
            calls.enter(self, self._name)
        self._begun = time.perf_counter_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        visit = current_visit()
        if visit is None:
            return
        if visit.calls is not None:
            visit.calls.leave()
        if error is not None:
            visit.fail(self._name, error)
        elif self._output is not _NO_VALUE:
            visit.note_stage(self._name, self._output, self._spent, is_function=self._is_function)

    def __call__(self, function: F) -> F:
        """Decorate a function, with a name: `@audit.stage("name")`."""
        return _decorate(function, self._name)


@overload
def stage(what: str, given: Any = ...) -> InsideStage: ...
@overload
def stage(what: F) -> F: ...
def stage(what: Any, given: Any = None) -> Any:
    """Mark a block of code, or a function, as a stage of a dataset that does its own preprocessing.

    `with audit.stage("tokenise", text) as s: tokens = s.out(tokenise(text))`, or `@audit.stage` above a function. Outside
    a recording both do nothing at all. Above a collate function it says that row n of the batch is sample n. What the first
    block of a dataset is given is stage 0, `load`; if the block does not name it, `load` is a row without a value.
    """
    if isinstance(what, str):
        return InsideStage(what, given)
    if not callable(what):
        raise UsageError(f"audit.stage was given {what!r}.", hint="Give a stage's name, or a function.")
    return _decorate(what, getattr(what, "__name__", type(what).__name__))


def _decorate(function: F, name: str) -> F:
    @functools.wraps(function)
    def observe(*args: Any, **kwargs: Any) -> Any:
        visit = current_visit()
        if visit is None:
            return function(*args, **kwargs)
        visit.note_given((*args, *kwargs.values()))
        with InsideStage(name, is_function=True) as inside:
            return inside.out(function(*args, **kwargs))

    observe._audit_stage = True  # type: ignore[attr-defined]
    return observe  # type: ignore[return-value]
