"""Makes visits: the one way in which `audit run`, a loop of the user's own and a replay take a sample from a dataset.

To make a visit is to prepare the random generators, put the stand-ins into their slots, call the dataset, split the item
into input and label, and record stage 0 and an item that differs from the last stage's output. If a step fails, the visit
has the error and the stage. The three callers differ only in the `Randomness` that they pass: seeded, watched or restored.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from audit.recorders.activity import Activity
from audit.recorders.files.file_readers import find_readers
from audit.recorders.items.item_parts import further_inputs, parts_of, split_item
from audit.recorders.randomness.visit_randomness import Randomness, States, VisitRequest
from audit.recorders.stages.discover import Pipeline
from audit.recorders.visit.batch_fetch import BatchFetch, BatchObserver
from audit.recorders.visit.error_text import describe_error
from audit.recorders.visit.instrument import NOTHING_INSERTED, Instrument
from audit.recorders.visit.item_calls import ItemCalls, assign_calls
from audit.recorders.visit.stream_outputs import StreamOutputs
from audit.recorders.visit.visit import Visit
from audit.recorders.visit.visit_outputs import CaptureOrVerify
from audit.records import Stage
from audit.values import native as loops


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
    states: States = ()
    #: False if the dataset made a whole batch at once, and no call that made this sample alone was observed.
    is_seen: bool = True
    #: Whether no stage was observed. Then `load`, stage 0, is the finished item.
    is_load_only: bool = False
    #: Whether the stages ran for items that come later, so that none of their outputs was noted.
    is_read_ahead: bool = False
    #: Pairs of stages between which the value changed, although no stage was observed that changed it.
    gaps: Sequence[tuple[str, str]] = ()
    #: Whether the visit read a file, went through the pipeline to a tensor and a class number, and left nothing to explain.
    is_plain: bool = False


@dataclass(slots=True)
class MadeBatch:
    """A batch that the dataset made in one call, with one visit for each of its samples."""

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
        #: True in `audit run`: an item or a stage output that is None is a failure. In a user's own loop None is allowed.
        self._require_value = require_value
        #: Whether an item that differs from the last stage's output is recorded as a stage `item`. False only in replays of
        #: runs by older versions, which did not do so.
        self._notes_items = notes_items
        #: Memory in which this process writes which sample it is making; the main process reads it to find a stall.
        self.activity = activity
        #: Whether an output may be kept as a function of an earlier one of its visit; a replay looks at each by itself.
        self.derives = False
        #: What the compiled loops know of visits in a row, and what shows them that none of them draws; None where they do not.
        self._plan: tuple[Any, ...] | None = None
        self._unchanged: tuple[Any, ...] | None = None
        #: Whether memory can show that a visit of this sequence draws nothing.
        self._may_be_still = False
        #: For a dataset without indexes, which stage outputs belong to which item.
        self.stream: StreamOutputs | None = None

    def make(self, request: VisitRequest, fetch: Callable[[], Any], level: CaptureOrVerify) -> MadeVisit:
        """Make one visit. If it created random generators that were not prepared, prepare them and make it again.

        An exception of the dataset is not raised: it is in `MadeVisit.error`.
        """
        made = self.finish(self.begin(request, level), fetch)
        if self.randomness.prepare_again(request):
            made = self.finish(self._new_visit(level, request.index), fetch)
        return made

    def begin(self, request: VisitRequest, level: CaptureOrVerify) -> Visit:
        """Prepare the generators and the visit; `finish` must follow. An exception raised here is not the dataset's."""
        # What this visit draws is before the next one.
        self._unchanged = None
        self.randomness.prepare(request)
        return self._new_visit(level, request.index)

    def make_item(self, request: VisitRequest, level: CaptureOrVerify) -> MadeVisit:
        """Make the visit of `dataset[index]`: of several in a row, nearly each in one call of the compiled loops.

        An exception that is raised here is not the dataset's, and the dataset was not called.
        """
        if self._unchanged is None:
            self.randomness.prepare(request)
            self._unchanged = self.randomness.unchanged_memory()
        if self._plan is not None:
            found = loops.native.make_visit(self._plan, self._unchanged, self.dataset, request.index, level)  # type: ignore[union-attr]
            if found is not None:
                return self._complete(*found)
            # The stand-ins may not stay in their slots any longer.
            self._plan = None
        self._unchanged = None
        return self._make_prepared(request.index, level)

    def make_row(
        self,
        indices: list[Any],
        items: list[Any],
        level: CaptureOrVerify,
        queue: tuple[Any, ...],
        most: int,
        most_bytes: int,
    ) -> tuple[MadeVisit | None, int]:
        """Make the visits of the items that are missing in `items`, at most so many, in one call of the compiled loops.

        Those that are as nearly all are wait in `queue`, and their items are added. The first other one is returned, and the
        bytes of the files of those that wait. An exception that is raised here is not the dataset's.
        """
        if self._plan is None or not self._may_be_still:
            return None, 0
        if self._unchanged is None:
            self.randomness.prepare(VisitRequest(-1))
            self._unchanged = self.randomness.unchanged_memory()
            self._may_be_still = self._unchanged is not None
            if not self._may_be_still:
                return None, 0
        found, size = loops.native.make_visits(  # type: ignore[union-attr]
            self._plan, self._unchanged, self.dataset, indices, level, items, queue, most, most_bytes
        )
        return None if found is None else self._complete(*found), size

    def make_item_again(self, request: VisitRequest, level: CaptureOrVerify) -> MadeVisit:
        """Do the same as `make_item`; if that created random generators that were not prepared, prepare them and make it again."""
        made = self.make_item(request, level)
        return self._make_prepared(request.index, level) if self.randomness.prepare_again(request) else made

    def _make_prepared(self, index: int, level: CaptureOrVerify) -> MadeVisit:
        """Make the visit of `dataset[index]`, for which the generators are prepared, without the compiled loops."""
        return self.finish(self._new_visit(level, index), functools.partial(operator.getitem, self.dataset, index))

    def _complete(
        self, visit: Visit, item: Any, error: BaseException | None, has_ended: bool, is_still: bool
    ) -> MadeVisit:
        """Return what the compiled loops have made; where the visit has not ended, end it as every other."""
        if not has_ended:
            self._unchanged = None
            return self.finish(visit, functools.partial(_give, item, error), is_begun=True)
        made = MadeVisit(visit, item, *item)
        if not is_still:
            self._unchanged = None
            self._note_states(made)
        made.is_plain = visit.source_bytes is not None and visit.problem is None
        return made

    def finish(self, visit: Visit, fetch: Callable[[], Any], *, is_begun: bool = False) -> MadeVisit:
        """Call the dataset, with the stand-ins in their slots, and end the visit."""
        made = MadeVisit(visit)
        inserted = NOTHING_INSERTED if is_begun else self.instrument.insert(visit)
        try:
            made.item = fetch() if is_begun or self.activity is None else self._fetch(visit.index, fetch)
            self._settle(made)
        except (Exception, SystemExit) as error:
            # StopIteration is caught too, as it would silently end the epoch; and SystemExit, as it would end the run.
            self._fail(made, error)
        finally:
            if is_begun and self.activity is not None:
                self.activity.end()
            self.instrument.remove(inserted, visit)
        visit.end(made.item)
        self._note_states(made)
        made.is_plain = made.is_plain and visit.problem is None
        return made

    def _note_states(self, made: MadeVisit) -> None:
        """Note the generators that the visit drew from."""
        try:
            made.states = self.randomness.drawn_states()
        except Exception as error:
            visit = made.visit
            visit.problem = visit.problem or f"the random states could not be noted: {describe_error(error)}"

    def _settle(self, made: MadeVisit) -> None:
        """Note what the dataset gave: its input and label, and whether the stages explain them."""
        visit, item = made.visit, made.item
        if visit.error is not None:
            visit.recover()
        if type(item) is tuple and len(item) == 2 and type(item[1]) is int and visit.is_tensor_of_stages(item[0]):
            made.value, made.label = item  # nearly always; `_note_item` would do no more
            made.is_plain = visit.source_bytes is not None
        else:
            self._note_item(made)

    def _fetch(self, index: int, fetch: Callable[[], Any]) -> Any:
        if self.activity is None:
            return fetch()
        self.activity.begin(index)
        try:
            return fetch()
        finally:
            self.activity.end()

    def begin_sequence(self) -> None:
        """Say that until `end_sequence` none of the user's code runs in this thread between one visit and the next."""
        self.instrument.keep_stand_ins()
        self.randomness.chain(True)
        plan = self.instrument.plan_visits()
        if self.activity is not None:
            self.activity.prepare()
        self._plan = None if plan is None else (*plan, self._require_value, self.derives, self.activity)
        self._unchanged, self._may_be_still = None, True

    def end_sequence(self) -> None:
        """Undo `begin_sequence`."""
        self._plan = self._unchanged = None
        self.instrument.release_stand_ins()
        self.randomness.chain(False)

    def prepare_workers(self, *, is_dataset_final: bool) -> None:
        """Look now for what workers that are forked next would look for, each by itself.

        If code of the user's may change the dataset in the workers first, they search it themselves.
        """
        find_readers()
        if is_dataset_final:
            self.instrument.prepare()
            self.randomness.find_generators()

    def make_batch(self, request: VisitRequest, fetch: BatchFetch, level: CaptureOrVerify) -> MadeBatch:
        """Do the same as `make` for a dataset that makes a whole batch in one call, as with `__getitems__`."""
        self.randomness.prepare(request)
        made = self.finish_batch(fetch, level)
        if self.randomness.prepare_again(request):
            made = self.finish_batch(fetch, level)
        return made

    def finish_batch(self, fetch: BatchFetch, level: CaptureOrVerify) -> MadeBatch:
        """Call the dataset for a batch, and observe the calls that make its single samples. Prepare the generators first."""
        observer = BatchObserver(self.instrument, lambda: self._new_visit(level), self.randomness.watch)
        items: Any = None
        error: BaseException | None = None
        with ItemCalls(self.dataset, observer.observe) as item_calls, self.instrument.observe_files():
            try:
                items = self._fetch(_first_number(fetch), lambda: fetch.make(self.dataset))
            except (Exception, SystemExit) as raised:
                error = raised
        calls = assign_calls(self.dataset, observer.calls, fetch.indices, items)
        states = observer.states_of(fetch, calls, items)
        visits = []
        for place, calls_of_place in enumerate(calls):
            visit = observer.join(calls_of_place)
            made = MadeVisit(visit or self._new_visit(level), states=states[place], is_seen=visit is not None)
            if error is None:
                made.item = fetch.item(items, place)
                if visit is None:
                    made.visit.opened = [
                        path for item, files in item_calls.elsewhere if item is made.item for path in files
                    ]
                self._note_item(made)
            elif visit is None:
                self._fail(made, error)
            made.visit.end(made.item)
            visits.append(made)
        return MadeBatch(items, visits, error)

    def prepare_batch(self) -> None:
        """Prepare the generators for a batch that the dataset makes as a whole."""
        self.randomness.prepare(VisitRequest(-1))

    def describe_stages(self, visit: Visit) -> dict[int, Stage]:
        """Return the stages of a visit that were not known before it, by their ordinals in the visit."""
        return self.instrument.describe(visit)

    def _new_visit(self, level: CaptureOrVerify, index: int = -1) -> Visit:
        visit = self.instrument.new_visit(level, refuse_none=self._require_value)
        visit.activity, visit.index, visit.derives = self.activity, index, self.derives
        return visit

    def _fail(self, made: MadeVisit, error: BaseException) -> None:
        made.visit.fail("dataset" if made.visit.rows else "load", error)
        made.error = error

    def _note_item(self, made: MadeVisit) -> None:
        """Split the item into input and label. If the input is not the last stage's output, record it as a stage `item`.

        Raises nothing.
        """
        visit = made.visit
        try:
            made.value, made.label = split_item(made.item)
            visit.settle_calls(made.value, made.label if made.label is not None else further_inputs(made.item))
            if self.stream is not None and not self.stream.belong_to(made.item, made.value, visit):
                visit.forget_outputs()
                visit.note_loaded(made.value)
                made.is_read_ahead = True
            elif made.value is None and self._require_value:
                visit.fail(visit.last_name or "dataset", TypeError("the pipeline returned None instead of a value"))
            elif 0 not in visit.rows:
                if visit.problem is None:
                    visit.note_loaded(made.value)
                    made.is_load_only = made.value is not None
            elif self._notes_items and not self._is_output(visit, made):
                if not visit.explains(made.value):
                    made.gaps = [(visit.last_stage or "load", "item")]
                visit.note_stage("item", made.value, 0)
            made.gaps = [*made.gaps, *visit.find_unseen_changes(made.item)]
        except Exception as error:
            if self._require_value:
                self._fail(made, error)
            else:
                visit.problem = visit.problem or f"the item could not be described: {describe_error(error)}"

    def _is_output(self, visit: Visit, made: MadeVisit) -> bool:
        """Return whether the item contains the object that the last stage returned, or its input has equal content."""
        if visit.holds(made.value):
            return True
        return any(visit.holds(part) for part in parts_of(made.item)) or visit.holds_equal(made.value)


def _give(item: Any, error: BaseException | None) -> Any:
    """Return what the dataset has returned, or raise what it has raised."""
    if error is not None:
        raise error
    return item


def _first_number(fetch: BatchFetch) -> int:
    """Return the first index of a batch that is made in one call; -1 if it is not a number."""
    first = fetch.indices[0] if len(fetch.indices) else None
    return first if isinstance(first, int) else -1


def make_lost_visit(pipeline: Pipeline) -> Visit:
    """Return the failed visit of a sample whose worker process died. A run and a replay give the same one."""
    visit = Visit(pipeline, "digest")
    visit.fail("worker", RuntimeError("the worker process was killed or crashed at this sample, twice"))
    return visit


def make_stalled_visit(pipeline: Pipeline, stage: str, error: str) -> Visit:
    """Return the visit of a sample that was given up because it took too long."""
    visit = Visit(pipeline, "digest")
    visit.fail(stage, TimeoutError(error))
    return visit
