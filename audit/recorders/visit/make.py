"""Makes visits: the one way in which `audit run`, a loop of the user's own and a replay take a sample from a dataset.

A visit prepares the generators, puts the stand-ins in, calls the dataset, splits the item, notes stage 0 and what lies
between the last stage and the item, and says where it failed. The three callers differ in the randomness that they give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from audit.recorders.activity import Activity
from audit.recorders.randomness.visit_randomness import Randomness, States, VisitRequest
from audit.recorders.stages.discover import Pipeline
from audit.recorders.visit.batch_fetch import BatchFetch, BatchObserver
from audit.recorders.visit.error_text import describe_error
from audit.recorders.visit.instrument import Instrument
from audit.recorders.visit.item_calls import ItemCalls, assign_calls
from audit.recorders.visit.items import parts_of, split_item
from audit.recorders.visit.visit import Visit
from audit.recorders.visit.visit_outputs import CaptureOrVerify


@dataclass(slots=True)
class MadeVisit:
    """One visit that has ended, and what it made."""

    visit: Visit
    item: Any = None
    #: The part of the item that is the model's input, and the part that is the label.
    value: Any = None
    label: Any = None
    #: What the dataset raised.
    error: BaseException | None = None
    #: The generators that the visit drew from, with their states before it.
    states: States = field(default_factory=list)
    #: Whether the sample was seen being made. It is not where a dataset works on whole batches.
    is_seen: bool = True
    #: Whether no stage was seen, so that `load` is the finished item.
    is_load_only: bool = False
    #: Stages between which the value changed in a way that no stage explains.
    gaps: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class MadeBatch:
    """A batch that the dataset made as a whole, with a visit for each place."""

    items: Any
    visits: list[MadeVisit]
    error: BaseException | None = None


class VisitMaker:
    """Makes visits of one dataset."""

    def __init__(
        self,
        dataset: Any,
        pipeline: Pipeline,
        randomness: Randomness,
        *,
        require_value: bool = False,
        notes_items: bool = True,
        activity: Activity | None = None,
    ) -> None:
        self.dataset = dataset
        self.instrument = Instrument(pipeline)
        self.randomness = randomness
        #: In `audit run` an item or a stage output that is None has failed; in a user's own loop it is their business.
        self._require_value = require_value
        #: False for a replay of runs that were recorded before `audit run` noted items.
        self._notes_items = notes_items
        #: Where the process that watches reads what this one is doing.
        self.activity = activity

    def make(self, request: VisitRequest, fetch: Callable[[], Any], level: CaptureOrVerify) -> MadeVisit:
        """Make one visit; once more if it made generators that had not been prepared. Raises nothing of the dataset's."""
        made = self.finish(self.begin(request, level), fetch)
        if self.randomness.prepare_again(request):
            made = self.finish(self._new_visit(level, request.index), fetch)
        return made

    def begin(self, request: VisitRequest, level: CaptureOrVerify) -> Visit:
        """Prepare the generators and the visit; `finish` must follow. What it raises has nothing to do with the dataset."""
        self.randomness.prepare(request)
        return self._new_visit(level, request.index)

    def finish(self, visit: Visit, fetch: Callable[[], Any]) -> MadeVisit:
        """Call the dataset, with the stand-ins in their slots, and end the visit."""
        made = MadeVisit(visit)
        inserted = self.instrument.insert(visit)
        try:
            made.item = self._fetch(visit.index, fetch)
            self._note_item(made)
        except (Exception, SystemExit) as error:
            # StopIteration too: it would end the epoch without a word; and an exit would end the run.
            self._fail(made, error)
        finally:
            self.instrument.remove(inserted)
        visit.end()
        try:
            made.states = self.randomness.drawn()
        except Exception as error:
            visit.problem = visit.problem or f"the random states could not be noted: {describe_error(error)}"
        return made

    def _fetch(self, index: int, fetch: Callable[[], Any]) -> Any:
        if self.activity is None:
            return fetch()
        self.activity.begin(index)
        try:
            return fetch()
        finally:
            self.activity.end()

    def make_batch(self, request: VisitRequest, fetch: BatchFetch, level: CaptureOrVerify) -> MadeBatch:
        """Make a batch as a whole, as `make` makes one sample."""
        self.randomness.prepare(request)
        made = self.finish_batch(fetch, level)
        if self.randomness.prepare_again(request):
            made = self.finish_batch(fetch, level)
        return made

    def finish_batch(self, fetch: BatchFetch, level: CaptureOrVerify) -> MadeBatch:
        """Call the dataset, watching the single samples that it makes. The generators have been prepared."""
        observer = BatchObserver(self.instrument, lambda: self._new_visit(level), self.randomness.watch)
        items: Any = None
        error: BaseException | None = None
        with ItemCalls(self.dataset, observer.observe):
            try:
                items = self._fetch(_first_number(fetch), lambda: fetch.make(self.dataset))
            except (Exception, SystemExit) as raised:
                error = raised
        calls = assign_calls(self.dataset, observer.calls, fetch.indices, items)
        states = observer.states_of(fetch, calls, items)
        visits = []
        for place, of_place in enumerate(calls):
            visit = observer.join(of_place)
            made = MadeVisit(visit or self._new_visit(level), states=states[place], is_seen=visit is not None)
            if error is None:
                made.item = fetch.item(items, place)
                self._note_item(made)
            elif visit is None:
                self._fail(made, error)
            made.visit.end()
            visits.append(made)
        return MadeBatch(items, visits, error)

    def _new_visit(self, level: CaptureOrVerify, index: int = -1) -> Visit:
        visit = self.instrument.new_visit(level, refuse_none=self._require_value)
        visit.activity, visit.index = self.activity, index
        return visit

    def _fail(self, made: MadeVisit, error: BaseException) -> None:
        made.visit.fail("dataset" if made.visit.rows else "load", error)
        made.error = error

    def _note_item(self, made: MadeVisit) -> None:
        """Split the item, and note it where it is not what the last stage gave. Raises nothing."""
        visit = made.visit
        try:
            made.value, made.label = split_item(made.item)
            visit.settle_calls(made.value, made.label)
            if made.value is None and self._require_value:
                visit.fail(visit.last_name or "dataset", TypeError("the pipeline returned None instead of a value"))
            elif 0 not in visit.rows:
                if visit.problem is None:
                    visit.note_loaded(made.value)
                    made.is_load_only = True
            elif self._notes_items and not self._is_output(visit, made):
                if not visit.explains(made.value):
                    made.gaps.append((visit.last_stage or "load", "item"))
                visit.note_stage("item", made.value, 0)
            made.gaps += visit.unseen_changes(made.item)
        except Exception as error:
            if self._require_value:
                self._fail(made, error)
            else:
                visit.problem = visit.problem or f"the item could not be described: {describe_error(error)}"

    def _is_output(self, visit: Visit, made: MadeVisit) -> bool:
        """Whether the item holds what the last stage gave, or its input is equal to it."""
        return any(visit.holds(part) for part in parts_of(made.item)) or visit.holds_equal(made.value)


def _first_number(fetch: BatchFetch) -> int:
    """Return the first index of a batch that is fetched as a whole; -1 where it is not a number."""
    first = fetch.indices[0] if len(fetch.indices) else None
    return first if isinstance(first, int) else -1


def lost_visit(pipeline: Pipeline) -> Visit:
    """Return the visit of a sample whose worker process died: the same in a run and in a replay."""
    visit = Visit(pipeline, "digest")
    visit.fail("worker", RuntimeError("the worker process was killed or crashed at this sample, twice"))
    return visit


def stalled_visit(pipeline: Pipeline, stage: str, error: str) -> Visit:
    """Return the visit of a sample that was given up because it took too long."""
    visit = Visit(pipeline, "digest")
    visit.fail(stage, TimeoutError(error))
    return visit
