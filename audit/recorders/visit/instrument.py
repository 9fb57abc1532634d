"""Puts stand-ins into the slots of a pipeline for the length of one visit."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import CodeType
from typing import Any, Literal, NamedTuple

from audit import values
from audit.recorders.calls.call_stages import CallStages
from audit.recorders.calls.function_slot import FunctionSlot
from audit.recorders.files.file_readers import Reader, observe_readers
from audit.recorders.files.opened_files import NO_OBSERVER, StateBefore, note_opened_files, stop_noting_files
from audit.recorders.stages.discover import Pipeline, PipelineStep, find_pipeline, walk
from audit.recorders.stages.stand_in import CURRENT_VISIT, StageStandIn, set_current_visit
from audit.recorders.visit.file_load import path_loader
from audit.recorders.visit.kept_stand_ins import KeptStandIns
from audit.recorders.visit.planned_stage import PlannedStage
from audit.recorders.visit.repeated_call import RepeatedCall, inside_stage
from audit.recorders.visit.visit import SINGLE, Visit
from audit.records import Level, Stage
from audit.values import native as loops

#: So often a dataset is searched again in one process: it may put another callable into an attribute for each item.
_MOST_SEARCHES = 16


class InsertedStandIns(NamedTuple):
    """What was put into a dataset for one visit."""

    pairs: list[tuple[Any, Any]]
    #: Functions whose calls are observed, and functions that read files.
    functions: list[FunctionSlot]
    readers: list[Reader]
    opened: StateBefore


#: What a visit inserts whose stand-ins are in their slots already.
NOTHING_INSERTED = InsertedStandIns([], [], [], NO_OBSERVER)


class Instrument:
    """Puts stand-ins into a pipeline's slots for the length of one visit, or of several in a row."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._pairs: list[tuple[Any, Any]] | None = None
        #: Whether all stand-ins can stay in their slots between visits.
        self._is_keepable = False
        self._calls: CallStages | None = None
        self._searches = 0
        #: Stand-ins that stay between visits, and the readers that are observed meanwhile.
        self._kept_stand_ins: KeptStandIns | None = None
        self._readers: list[Reader] = []
        #: The files that the current visit has opened, and the observer of opened files before.
        self._opened: list[str] = []
        self._opened_before = NO_OBSERVER
        #: Whether the last visit found other transforms in the dataset than this pipeline's.
        self.changed = False

    def _build(self) -> list[tuple[Any, Any]]:
        pairs: list[tuple[Any, Any]] = list(self.pipeline.expanded)
        for step, slot in walk(self.pipeline):
            pairs.append((slot, StageStandIn(slot.get(), _runner(step))))
        pairs += [(slot, StageStandIn(slot.get(), Visit.read)) for slot in self.pipeline.reads]
        for slot in self.pipeline.loads:
            target = slot.get()
            pairs.append((slot, StageStandIn(target, Visit.load if self.pipeline.reads else path_loader(target))))
        self._is_keepable = KeptStandIns.is_possible(pairs, self.pipeline.found)
        return pairs

    def prepare(self) -> None:
        """Look for stages now, as if none had been found before, rather than at the first visit."""
        self._pairs = self._calls = None
        if self.pipeline.is_current():
            self._pairs = self._build()
            self._find_calls()

    def keep_stand_ins(self) -> None:
        """Let the stand-ins stay in their slots from one visit to the next, until `release_stand_ins`.

        To be called only where no code of the user's runs in this thread between the visits.
        """
        self.release_stand_ins()
        found = self.pipeline.found
        if not found.is_current():
            return
        if self._pairs is None:
            self._pairs = self._build()
        if self._is_keepable:
            # Looks for functions of the user's own, and so before the stand-ins are there.
            self._find_calls()
            # Before the calls: a function that reads a file is not a stage.
            self._readers = observe_readers()
            self._kept_stand_ins = KeptStandIns(self._pairs, found)
            self.changed = False
            self._opened_before = note_opened_files(self._opened)
            self._kept_stand_ins.put()
            if self._calls is not None:
                self._calls.keep_stand_ins()

    def release_stand_ins(self) -> None:
        """Undo `keep_stand_ins`."""
        if self._kept_stand_ins is not None:
            if self._calls is not None:
                self._calls.release_stand_ins()
            self._kept_stand_ins.restore()
            self._kept_stand_ins = None
            stop_noting_files(self._opened_before)
            for reader in self._readers:
                reader.restore()
            self._readers = []

    def plan_visits(self) -> tuple[Any, ...] | None:
        """Return what the compiled loops must know to begin and end visits in a row; None where they cannot, or there are none."""
        if loops.native is None or self._kept_stand_ins is None:
            return None
        steps = len(self.pipeline.steps)
        places = self._kept_stand_ins.places()
        return (*places, Visit, self.pipeline, self._calls, self._opened, CURRENT_VISIT, steps, values.torch_names())

    def new_visit(self, level: Level | Literal["verify"], *, refuse_none: bool = False) -> Visit:
        """Return a visit that records the stages of the pipeline, as long as they are the ones that the dataset has."""
        if self._kept_stand_ins is not None and not self._kept_stand_ins.is_current():
            self.release_stand_ins()
        # A stand-in for what is no longer there would bring it back: then the visit is of no stage at all.
        self.changed = self._kept_stand_ins is None and not self.pipeline.is_current()
        if self._pairs is None and not self.changed:
            self._pairs = self._build()
        pipeline = self.pipeline if not self.changed else find_pipeline(None)
        return Visit(pipeline, level, refuse_none=refuse_none)

    def insert(self, visit: Visit) -> InsertedStandIns:
        """Put the stand-ins into their slots, and make the visit this thread's; pass what this returns to `remove`."""
        if self._kept_stand_ins is not None:
            visit.follower = self._calls
            # One list for all visits. What audit itself opened between two of them is nobody's.
            self._opened.clear()
            visit.opened = self._opened
            CURRENT_VISIT.visit = visit
            return NOTHING_INSERTED
        pairs = (self._pairs or []) if not self.changed else []
        # Before the calls: a function that reads a file is not a stage.
        readers = observe_readers()
        functions = self._observe_calls(visit)
        opened = note_opened_files(visit.opened)
        for slot, stand_in in pairs:
            slot.put(stand_in)
        set_current_visit(visit)
        return InsertedStandIns(pairs, functions, readers, opened)

    def remove(self, inserted: InsertedStandIns, visit: Visit) -> None:
        """Put back what the slots held before `insert`."""
        CURRENT_VISIT.visit = None
        if inserted is NOTHING_INSERTED:
            visit.opened = visit.opened.copy()
            return
        for slot, _ in reversed(inserted.pairs):
            slot.restore()
        stop_noting_files(inserted.opened)
        for function in (*inserted.functions, *inserted.readers):
            function.restore()

    @contextlib.contextmanager
    def observe_files(self) -> Iterator[None]:
        """Observe the threads that are started meanwhile; what this thread opens itself belongs to no single sample."""
        readers = observe_readers()
        before = note_opened_files([])
        try:
            yield
        finally:
            stop_noting_files(before)
            for reader in readers:
                reader.restore()

    def _observe_calls(self, visit: Visit) -> list[FunctionSlot]:
        calls = self._find_calls() if not self.changed else None
        return calls.observe(visit) if calls is not None else []

    def _find_calls(self) -> CallStages | None:
        if self._calls is not None and self._searches < _MOST_SEARCHES and not self._calls.is_current():
            # Another transform was put into an attribute since, between two epochs for example.
            self._calls = None
            self._searches += 1
        if self._calls is None and self.pipeline.observed is not None:
            self._calls = CallStages(self.pipeline.observed, self.pipeline)
        return self._calls

    def own_code(self) -> list[CodeType]:
        """Return the user's own code that may make items, as far as it was searched."""
        return self._calls.codes if self._calls is not None else []

    def observed_names(self) -> set[str]:
        """Return the names by which the user's own code may call stages."""
        named = {step.stage.name for step in self.pipeline.steps}
        return named | (self._calls.observed_names if self._calls is not None else set())

    def describe(self, visit: Visit) -> dict[int, Stage]:
        """Return the stages of a visit that were not known before it, by their ordinals in the visit."""
        added: dict[int, Stage] = {}
        for ordinal, what in visit.added_stages.items():
            if isinstance(what, RepeatedCall):
                added[ordinal] = what.describe()
            elif isinstance(what, str):
                added[ordinal] = inside_stage(what)
            elif self._calls is not None:
                added[ordinal] = self._calls.describe(what)
        return added

    def __getstate__(self) -> dict[str, Any]:
        own: dict[str, Any] = {
            "_searches": 0,
            "_pairs": None,
            "_is_keepable": False,
            "changed": False,
            "_calls": None,
            "_kept_stand_ins": None,
            "_readers": [],
            "_opened": [],
            "_opened_before": NO_OBSERVER,
        }
        return {"pipeline": self.pipeline} | own


def _runner(step: PipelineStep) -> Any:
    # Not a function of Python's, which would be one more for each stage of each sample.
    stage = PlannedStage(step)
    slow = functools.partial(Visit.run, stage=stage)
    plan = stage.compile(slow, SINGLE) if loops.native is not None else None
    return slow if plan is None else functools.partial(loops.native.run_stage, plan)  # type: ignore[union-attr]
