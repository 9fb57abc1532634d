"""One sample on its way through the pipeline: what each stage returned becomes a row.

A visit never raises for what it records: a value that cannot be described is a problem noted on the
visit, and the pipeline goes on. It keeps no reference to a value once the visit has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import torch

from audit import values
from audit.recorders.activity import note_of
from audit.recorders.calls.data_values import carries_data, ids_in, is_picture
from audit.recorders.calls.observed_calls import ObservedCall
from audit.recorders.calls.requested_items import RequestedItems
from audit.recorders.stages.call_parameters import listen
from audit.recorders.stages.discover import Pipeline
from audit.recorders.stages.drawn_parameters import Listener
from audit.recorders.visit.called_stages import CalledStages
from audit.recorders.visit.planned_stage import PlannedStage
from audit.recorders.visit.skipped_stages import add_skipped_stages
from audit.recorders.visit.stage_row import make_unseen_row
from audit.recorders.visit.target_stages import mark_repeated_targets
from audit.recorders.visit.visit_outputs import CaptureOrVerify
from audit.recorders.visit.visit_stages import FIRST_INSIDE_NUMBER
from audit.records import Columns

#: Types whose values hold no other values: tensors and pictures, as they come.
SINGLE: set[type] = set()


def _ids_of(value: Any) -> set[int]:
    if isinstance(value, torch.Tensor) or is_picture(value):
        SINGLE.add(type(value))
    return ids_in(value)


class Visit(CalledStages):
    """Collects the facts of one visit. `level` says how much of each output is kept."""

    # What most visits leave as it is.
    index = -1
    #: The items that the dataset asked others for, where that tells which sample this is.
    asked: RequestedItems | None = None
    #: Other calls that were made for the same sample before.
    earlier: Sequence[Visit] = ()
    #: The stages that ran, in order.
    route: Sequence[int] = ()

    def __init__(self, pipeline: Pipeline, level: CaptureOrVerify, *, refuse_none: bool = False) -> None:
        self._level = level
        self.rows = {}
        self._pipeline = pipeline
        #: In `audit run` a stage that returns None has failed; in a user's own loop it is their business.
        self.refuse_none = refuse_none
        self._ran = []
        self._passed = {}
        self.opened = []

    def enter_stage(self, name: str) -> bytes:
        """Let other processes know that a stage begins; return what `leave_stage` is to be given."""
        return self.activity.enter(note_of(name)) if self.activity is not None else b""

    def leave_stage(self, noted: bytes) -> None:
        """Let other processes know that the stage has ended."""
        if self.activity is not None:
            self.activity.leave(noted)

    # -- called by the stand-ins ---------------------------------------------------------------

    def run(self, target: Any, args: Any, kwargs: Any, *, stage: PlannedStage) -> Any:
        """Call one stage, and note what it returned. The usual way is compiled too: values/_stage.h does the same."""
        value = args[0] if len(args) == 1 and not kwargs else (args or kwargs)
        rows, is_target = self.rows, stage.is_target
        if not is_target:
            if 0 not in rows:
                # The dataset decoded the source by itself: what its first stage is given is the load.
                self.note_loaded(value)
            elif isinstance(value, tuple) and rows[0].target is None:
                self._note_loaded_target(value)
        input_digest = self._digest_input(value, stage.path)
        listener = listen(stage.step) if stage.draws else None
        overhead_before, ran_before = self._overhead, len(self._ran)
        activity, follower = self.activity, self.follower
        calls = follower.calls_of(self) if follower is not None else None
        begun = perf_counter_ns()
        if calls is not None:
            calls.enter(stage.target, stage.path)
        noted = activity.enter(stage.note) if activity is not None else b""
        try:
            output = target(*args, **kwargs)
        except BaseException as error:
            self.fail(stage.name, error)
            raise
        finally:
            if activity is not None:
                activity.leave(noted)
            if calls is not None:
                calls.leave()
            if listener is not None:
                listener.detach()
        ended = perf_counter_ns()
        if output is None and not is_target:
            self.check_none(stage.name)
        params = None
        if stage.is_container or stage.draws:
            params = self._params_of(stage, listener, self._ran[ran_before:], input_digest, output)
        ordinal = stage.ordinal if stage.ordinal not in rows else self.stages.add_repeated(stage.step.stage)
        spent = ended - begun - (self._overhead - overhead_before)
        self._note(ordinal, output, input_digest, spent, params, ended, is_target=is_target)
        self._passed[ordinal] = (value if type(value) in SINGLE else _ids_of(value), output)
        self._ran.append(stage.ordinal)
        return output

    def check_none(self, name: str) -> None:
        """Raise where a stage may not return None, as this one did."""
        if self.refuse_none:
            refused = TypeError(f"{name} returned None instead of a value")
            self.fail(name, refused)
            raise refused

    def _params_of(
        self, stage: PlannedStage, listener: Listener | None, ran: list[int], input_digest: str | None, output: Any
    ) -> str | None:
        overhead = self._overhead
        changed = stage.is_container and not ran and self._digest_of(output) != input_digest
        # What was spent here is after the stage: `_note` counts from the end of the stage.
        self._overhead = overhead
        return self._params(stage.step, listener, ran, changed=changed)

    @property
    def last_name(self) -> str | None:
        """The name of the last stage on the way to the model that ran."""
        steps = self._pipeline.steps
        return next((steps[n].stage.name for n in reversed(self._ran) if not steps[n].stage.is_target), None)

    def is_tensor_of_stages(self, value: Any) -> bool:
        """Return whether this is the tensor that the pipeline's last stage gave, where no other stage was seen."""
        if value is not self._value or type(value) is not torch.Tensor or not value.ndim:
            return False
        if self.calls is not None or self._stages is not None or self.changed_in_place:
            return False
        return 0 in self.rows and not self._is_changed_in_place()

    def explains(self, value: Any) -> bool:
        """Return whether the stages seen made a value: it is their output, holds it, or is part of it."""
        if ids_in(value) & ids_in(self._value):
            return not self._is_changed_in_place()
        if self.calls is not None and self.calls.holds_part_of(value):
            return True
        return any(one.explains(value) for one in self.earlier)

    def find_unseen_changes(self, item: Any) -> list[tuple[str, str]]:
        """Return pairs of stages between which the value changed without a stage."""
        found = self.calls.find_unseen_changes(item) if self.calls is not None else []
        return [*found, *self.changed_in_place]

    def passed_values(self) -> list[tuple[set[int], Any]]:
        """Return what each stage so far was given, as the identities of all in it, and what it returned."""
        found = [(given if type(given) is set else {id(given)}, output) for given, output in self._passed.values()]
        return [
            *found,
            *((call.input_ids, call.output) for call in (self.calls.observed_calls if self.calls is not None else ())),
        ]

    def forget_outputs(self) -> None:
        """Forget what the stages returned, and the files that they read: they are another item's."""
        self.rows.clear()
        self._ran.clear()
        self._passed.clear()
        self._stages = self.calls = self._value = self._digest = self._last = self._picture = None
        self.changed_in_place = ()
        self.source_digest = self.source_bytes = self.source_path = None
        self.opened = []

    def note_given(self, given: Sequence[Any], *, is_sole: bool = False) -> None:
        """Note what the first stage is given, where that is under `audit.stage`; of several values the first that is data."""
        if 0 not in self.rows and (first := next((v for v in given if is_sole or carries_data(v)), None)) is not None:
            self.note_loaded(first)

    def note_stage(self, name: str, value: Any, nanoseconds: int, *, is_function: bool = False) -> None:
        """Note a stage that the dataset's own code names with `audit.stage`."""
        if 0 not in self.rows:
            if is_function or values.digest_version() < 3:
                # A function that was given no value made it. Earlier versions, of which this may be a replay, said so of blocks too.
                self.note_loaded(value)
                self._load = None
            else:
                self.rows[0] = make_unseen_row()
                self.changed_in_place = [*self.changed_in_place, ("", name)]
        self._note(self.stages.add_named(name), value, self._digest, nanoseconds, None)

    def settle_calls(self, item_input: Any, others: Any) -> None:
        """Separate the calls that made the label from those that made the model's input, now that the item is known."""
        if self.calls is None and not self.added_stages:
            return
        repeated = self.stages.has_repeated
        if not repeated and (self.calls is None or not self.calls.observed_calls):
            return
        if self.calls is not None:
            self.calls.mark_targets(item_input, others)
        if repeated:
            passed = {
                ordinal: (given if type(given) is set else {id(given)}, output)
                for ordinal, (given, output) in self._passed.items()
            }
            mark_repeated_targets(self.stages, passed, item_input, others)
        last = next((n for n in reversed(self.rows) if not self.stages.is_target(n)), None)
        what = self.stages.added.get(last) if last is not None else None
        if last is None or isinstance(what, str):
            return
        if isinstance(what, ObservedCall):
            self._set_last(what.output, self.rows[last])
        elif repeated and last in self._passed:
            self._set_last(self._passed[last][1], self.rows[last])

    # -- what is noted -------------------------------------------------------------------------

    def end(self, item: Any = None) -> None:
        """Let go of the values, and fill in the stages that were passed over; `item` is what the dataset gave."""
        self._value = self._last = self._picture = None
        self.earlier = ()
        if self.asked is not None:
            self.asked.end(item, has_failed=self.error is not None)
        self._passed.clear()
        rows = self.rows
        self.route = tuple(rows)
        if self.calls is not None:
            self.calls.forget_values()
        added = 0 if self._stages is None else len(self._stages.added)
        if self.error is None and len(rows) - added < len(self._pipeline.steps):
            add_skipped_stages(self._pipeline, rows)

    def add_calls(self, earlier: Visit) -> None:
        """Take in another call that was made for the same sample before: what ran in both is recorded twice."""
        self.earlier = [*self.earlier, earlier]
        numbers = self.stages.join(earlier.stages, earlier.rows, self.rows)
        rows = dict(earlier.rows)
        for ordinal, row in self.rows.items():
            rows.setdefault(numbers[ordinal], row)
        self.rows = rows
        if earlier.source_bytes is not None:
            self.source_digest, self.source_bytes = earlier.source_digest, earlier.source_bytes
            self.source_path = earlier.source_path
        self.opened[:0] = earlier.opened
        if self.asked is not None and earlier.asked is not None:
            self.asked.join(earlier.asked)
        self.problem = self.problem or earlier.problem

    # -- rows ----------------------------------------------------------------------------------

    def write(
        self, index: int, position: int, outputs: Columns, payloads: Columns, numbers: Mapping[int, int] | None = None
    ) -> None:
        """Append this visit's rows of `stage_outputs` and `payloads`; `numbers` are those of stages not known before."""
        rows, steps = self.rows, self._pipeline.steps
        for ordinal in sorted(rows):
            if ordinal < FIRST_INSIDE_NUMBER:
                rows[ordinal].write(index, position, ordinal, steps[ordinal].stage.name, outputs, payloads)
            else:
                number = ordinal if numbers is None else numbers[ordinal]
                rows[ordinal].write(index, position, number, self.stages.name_of(ordinal), outputs, payloads)
