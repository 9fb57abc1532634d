"""The stages of one visit: those of the pipeline, and those that are met only while the item is made."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from audit.recorders.calls.observed_calls import ObservedCall
from audit.recorders.stages.describe import name_of
from audit.recorders.stages.discover import Pipeline
from audit.recorders.visit.repeated_call import RepeatedCall, inside_stage
from audit.records import Stage

#: Stages that are met only in visits are numbered from here in a worker; the run gives them their own ordinals.
FIRST_INSIDE_NUMBER = 10_000
#: A stage that was not known before the visit: the name that the dataset's own code gives it, or a call.
AddedStage = str | ObservedCall | RepeatedCall


class VisitStages:
    """Numbers the stages of one visit, and knows the path, the name and the way of each."""

    __slots__ = ("_pipeline", "added")

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        #: By ordinal, the stages that were not known before the visit.
        self.added: dict[int, AddedStage] = {}

    def add(self, what: AddedStage) -> int:
        """Return the ordinal of a stage that was not known before."""
        ordinal = FIRST_INSIDE_NUMBER + len(self.added)
        self.added[ordinal] = what
        return ordinal

    def add_repeated(self, stage: Stage) -> int:
        """Return an ordinal for a stage that has run before in this visit, as with two views of a picture."""
        number = 2 + sum(isinstance(what, RepeatedCall) and what.stage is stage for what in self.added.values())
        return self.add(RepeatedCall(stage, number))

    def add_named(self, name: str) -> int:
        """Return an ordinal for a stage that the dataset's own code names, once or repeatedly."""
        path = inside_stage(name).path
        before = sum(
            what == name or (isinstance(what, RepeatedCall) and what.stage.path == path) for what in self.added.values()
        )
        return self.add(name if not before else RepeatedCall(inside_stage(name), before + 1))

    @property
    def has_repeated(self) -> bool:
        """Whether a stage ran more than once."""
        return any(not isinstance(what, str) and what.is_repeated for what in self.added.values())

    def path_of(self, ordinal: int) -> str:
        """Return the path that names a stage in the run."""
        if ordinal < FIRST_INSIDE_NUMBER:
            return self._pipeline.steps[ordinal].stage.path
        return _path_of(self.added[ordinal])

    def name_of(self, ordinal: int) -> str:
        """Return the name of a stage."""
        if ordinal < FIRST_INSIDE_NUMBER:
            return self._pipeline.steps[ordinal].stage.name
        what = self.added[ordinal]
        if isinstance(what, RepeatedCall):
            return what.stage.name
        return what if isinstance(what, str) else name_of(what.target)

    def is_target(self, ordinal: int) -> bool:
        """Return whether a stage makes the label, and not the model's input."""
        if ordinal < FIRST_INSIDE_NUMBER:
            return self._pipeline.steps[ordinal].stage.is_target
        what = self.added[ordinal]
        if isinstance(what, RepeatedCall):
            return what.is_target or what.stage.is_target
        return not isinstance(what, str) and what.is_target

    def join(self, earlier: VisitStages, ran_before: Iterable[int], ran: Iterable[int]) -> dict[int, int]:
        """Put the stages of an earlier call of the dataset first; the new ordinal of each own stage that ran.

        A stage that ran in both calls gets another ordinal.
        """
        own, self.added = self.added, dict(earlier.added)
        known = {earlier.path_of(ordinal) for ordinal in ran_before}
        numbers = {0: 0}
        for ordinal in ran:
            if ordinal != 0:
                numbers[ordinal] = self._join_stage(ordinal, own.get(ordinal), known)
        return numbers

    def _join_stage(self, ordinal: int, what: AddedStage | None, known: set[str]) -> int:
        path = self._pipeline.steps[ordinal].stage.path if what is None else _path_of(what)
        if path not in known:
            known.add(path)
            return ordinal if what is None else self.add(what)
        if isinstance(what, ObservedCall):
            number = _free_number(path, known)
            what.label, what.is_repeated = f"{what.label}#{number}", True
            return self.add(what)
        if isinstance(what, RepeatedCall):
            base = what.stage
        else:
            base = self._pipeline.steps[ordinal].stage if what is None else inside_stage(what)
        return self.add(RepeatedCall(base, _free_number(base.path, known)))


def _path_of(what: AddedStage) -> str:
    return inside_stage(what).path if isinstance(what, str) else what.path


def _free_number(path: str, known: set[str]) -> int:
    """Return the number of the next call of a stage, and add its path to those that are known."""
    number = next(n for n in itertools.count(2) if f"{path}#{n}" not in known)
    known.add(f"{path}#{number}")
    return number
