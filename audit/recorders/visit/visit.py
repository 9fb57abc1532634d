"""One sample on its way through the pipeline: what each stage returned becomes a row.

A visit never raises for what it records: a value that cannot be described is a problem noted on the
visit, and the pipeline goes on. It keeps no reference to a value once the visit has ended.
"""

from __future__ import annotations

import hashlib
import itertools
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from audit import values
from audit.recorders.activity import Activity
from audit.recorders.calls.data_values import ids_in
from audit.recorders.calls.observed_calls import ObservedCall, VisitCalls, arguments_of
from audit.recorders.stages import drawn
from audit.recorders.stages.describe import name_of
from audit.recorders.stages.discover import Pipeline, PipelineStep, looks_random
from audit.recorders.visit.repeated_call import RepeatedCall, inside_stage
from audit.recorders.visit.stage_row import Row
from audit.records import Columns, Level, Stage
from audit.values.base import Facts

#: Stages that a dataset's own code names are numbered from here in a worker; the run gives them their own ordinals.
INSIDE = 10_000
_NOT_FIRED = '{"fired": false}'


class Visit:
    """Collects the facts of one visit. `level` says how much of each output is kept."""

    def __init__(self, pipeline: Pipeline, level: Level | Literal["verify"], *, refuse_none: bool = False) -> None:
        self._pipeline = pipeline
        #: In `audit run` a stage that returns None has failed; in a user's own loop it is their business.
        self.refuse_none = refuse_none
        self._level = level
        self._value: Any = None
        self._load: Any = None
        self._digest: str | None = None
        self._last: Row | None = None
        self._overhead = 0
        self._ran: list[int] = []
        #: Stages that were not known before the visit: the name of one that the dataset's own code tells of, or a call.
        self.added: dict[int, str | ObservedCall | RepeatedCall] = {}
        #: By ordinal, what a stage of the pipeline was given and returned.
        self._passed: dict[int, tuple[set[int], Any]] = {}
        #: Follows the calls that the dataset makes, where stages are found by them.
        self.calls: VisitCalls | None = None
        self.rows: dict[int, Row] = {}
        #: The stages that ran, in order.
        self.route: list[int] = []
        self.failed_stage: str | None = None
        self.error: str | None = None
        self.problem: str | None = None
        self.source_digest: str | None = None
        self.source_bytes: int | None = None
        #: Files that were opened for reading while the item was made.
        self.opened: list[str] = []
        #: Where other processes can read what this one is doing.
        self.activity: Activity | None = None
        self.index = -1

    def enter_stage(self, name: str) -> None:
        """Let other processes know that a stage begins."""
        if self.activity is not None:
            self.activity.enter(name)

    def leave_stage(self) -> None:
        """Let other processes know that the stage has ended."""
        if self.activity is not None:
            self.activity.leave()

    # -- called by the stand-ins ---------------------------------------------------------------

    def read(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return the bytes of the source file, hashed as they are read."""
        try:
            data = target(*args, **kwargs)
        except BaseException as error:
            self.fail("load", error)
            raise
        self.hash_source(data)
        return data

    def hash_source(self, data: bytes) -> None:
        """Note the digest of exactly the buffer that is decoded."""
        self.source_digest = hashlib.sha256(data).hexdigest()
        self.source_bytes = len(data)

    def load(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Stage 0: the decoded source."""
        begun = time.perf_counter_ns()
        try:
            value = target(*args, **kwargs)
        except BaseException as error:
            self.fail("load", error)
            raise
        self.note_loaded(value, time.perf_counter_ns() - begun)
        return value

    def note_loaded(self, value: Any, nanoseconds: int = 0) -> None:
        """Note stage 0."""
        self._load = value
        self._note(0, value, None, nanoseconds, None)

    def take_load(self) -> Any:
        """Return the value of stage 0, and let go of it."""
        value, self._load = self._load, None
        return value

    def run(self, step: PipelineStep, target: Any, args: Any, kwargs: Any) -> Any:
        """Call one stage, and note what it returned."""
        value = args[0] if len(args) == 1 and not kwargs else (args or kwargs)
        is_target = step.stage.is_target
        if not is_target and 0 not in self.rows:
            # The dataset decoded the source by itself: what its first stage is given is the load.
            self.note_loaded(value)
        came_in = self._digest_of(value)
        listener = self._listen(step)
        overhead_before, ran_before = self._overhead, len(self._ran)
        begun = time.perf_counter_ns()
        if self.calls is not None:
            self.calls.enter(step.target, step.stage.path)
        self.enter_stage(step.stage.name)
        try:
            output = target(*args, **kwargs)
        except BaseException as error:
            self.fail(step.stage.name, error)
            raise
        finally:
            self.leave_stage()
            if self.calls is not None:
                self.calls.leave()
            if listener is not None:
                listener.detach()
        if output is None and self.refuse_none and not is_target:
            refused = TypeError(f"{step.stage.name} returned None instead of a value")
            self.fail(step.stage.name, refused)
            raise refused
        spent = time.perf_counter_ns() - begun - (self._overhead - overhead_before)
        ran = self._ran[ran_before:]
        changed = bool(step.children) and not ran and self._digest_of(output) != came_in
        params = self._params(step, listener, ran, changed=changed)
        ordinal = self._ordinal_of(step.stage)
        self._note(ordinal, output, came_in, spent, params, is_target=is_target)
        self._passed[ordinal] = (ids_in(value), output)
        self._ran.append(step.stage.stage)
        return output

    def _ordinal_of(self, stage: Stage) -> int:
        """Return the stage's ordinal; a new one where the stage has run before in this visit, as with two views of a picture."""
        if stage.stage not in self.rows:
            return stage.stage
        number = 2 + sum(isinstance(what, RepeatedCall) and what.stage is stage for what in self.added.values())
        return self._add(RepeatedCall(stage, number))

    def path_of(self, ordinal: int) -> str:
        """Return the path that names a stage in the run, for one of this visit's ordinals."""
        if ordinal < INSIDE:
            return self._pipeline.steps[ordinal].stage.path
        what = self.added[ordinal]
        return inside_stage(what).path if isinstance(what, str) else what.path

    @property
    def last_name(self) -> str | None:
        """The name of the last stage on the way to the model that ran."""
        steps = self._pipeline.steps
        return next((steps[n].stage.name for n in reversed(self._ran) if not steps[n].stage.is_target), None)

    @property
    def last_stage(self) -> str | None:
        """The path and name of the last stage on the way to the model that ran."""
        last = next((n for n in reversed(self.rows) if n and not self._is_target(n)), None)
        return None if last is None else f"{self.path_of(last)} ({self._name_of(last)})"

    @property
    def last_kind(self) -> str | None:
        """The kind of value that the last of them returned, or its class where that is a tv_tensor."""
        ordinals = [n for n in self.rows if not self._is_target(n)]
        if not ordinals:
            return None
        facts = self.rows[max(ordinals)].facts
        return facts.mode if facts.mode is not None and facts.mode.startswith("tv_tensors.") else facts.kind

    def _is_target(self, ordinal: int) -> bool:
        if ordinal < INSIDE:
            return self._pipeline.steps[ordinal].stage.is_target
        what = self.added[ordinal]
        if isinstance(what, RepeatedCall):
            return what.is_target or what.stage.is_target
        return not isinstance(what, str) and what.is_target

    @property
    def last_digest(self) -> str | None:
        """The digest of what the pipeline gave, as far as its stages show."""
        return self._digest

    def holds(self, value: Any) -> bool:
        """Whether this very object is what the last stage gave."""
        return value is self._value and value is not None

    def holds_equal(self, value: Any) -> bool:
        """Whether the last stage gave something with the same content."""
        return self._digest is not None and self._digest_of(value) == self._digest

    def explains(self, value: Any) -> bool:
        """Return whether the stages seen made a value: it is their output, holds it, or is part of it."""
        if ids_in(value) & ids_in(self._value):
            return True
        return self.calls is not None and self.calls.holds_part_of(value)

    def unseen_changes(self, item: Any) -> list[tuple[str, str]]:
        """Return pairs of stages between which the value changed without a stage."""
        return self.calls.unseen_changes(item) if self.calls is not None else []

    def note_stage(self, name: str, value: Any, nanoseconds: int) -> None:
        """Note a stage that the dataset's own code names with `audit.stage`."""
        if 0 not in self.rows:
            self.note_loaded(value)
        before = [what for what in self.added.values() if what == name or _repeats(what, name)]
        what = name if not before else RepeatedCall(inside_stage(name), len(before) + 1)
        self._note(self._add(what), value, self._digest, nanoseconds, None)

    def _add(self, what: str | ObservedCall | RepeatedCall) -> int:
        ordinal = INSIDE + len(self.added)
        self.added[ordinal] = what
        return ordinal

    # -- calls that are stages (see calls/observed_calls.py) -------------------------------------

    def before_call(self, target: Any, value: Any) -> CallToken:
        """Note that a call which may be a stage is about to be made."""
        if 0 not in self.rows:
            # The dataset decoded the source by itself: what its first stage is given is the load.
            self.note_loaded(value)
        step = PipelineStep(Stage(0, "", name_of(target), "", None, looks_random(target)), [], target)
        return CallToken(step, self._digest_of(value), self._listen(step), self._overhead)

    def after_call(self, call: ObservedCall, token: CallToken, nanoseconds: int) -> None:
        """Note what a call that is a stage has returned."""
        spent = nanoseconds - (self._overhead - token.overhead)
        params = self._params(token.step, token.listener, [], changed=True) or arguments_of(call)
        call.ordinal = self._add(call)
        self._note(call.ordinal, call.output, token.came_in, spent, params)

    def rename_call(self, call: ObservedCall) -> None:
        """Note that a call goes by the name of the function that made it, and by its arguments."""
        row = self.rows[call.ordinal]
        row.params = arguments_of(call) or row.params

    def is_unchanged(self, call: ObservedCall) -> bool:
        """Whether the output of an earlier call is still what was noted; it may have been changed in place."""
        row = self.rows.get(call.ordinal)
        return row is not None and values.digest(call.output) == row.facts.digest

    def settle_calls(self, item_input: Any, others: Any) -> None:
        """Tell the calls that made the label from those that made the model's input, now that the item is there."""
        repeated = any(isinstance(what, RepeatedCall) for what in self.added.values())
        if not repeated and (self.calls is None or not self.calls.made):
            return
        if self.calls is not None:
            self.calls.mark_targets(item_input, others)
        if repeated:
            self._mark_repeated(ids_in(item_input), ids_in(others))
        last = next((n for n in reversed(self.rows) if not self._is_target(n)), None)
        what = self.added.get(last) if last is not None else None
        if last is None or isinstance(what, str):
            return
        if isinstance(what, ObservedCall):
            self._value, self._digest, self._last = what.output, self.rows[last].facts.digest, self.rows[last]
        elif repeated and last in self._passed:
            self._value, self._digest, self._last = (
                self._passed[last][1],
                self.rows[last].facts.digest,
                self.rows[last],
            )

    def _mark_repeated(self, item_input: set[int], others: set[int]) -> None:
        """Mark repeated stages that led to the label and not to the input, as a transform of picture and mask does."""
        main, side = self._leading_to(item_input), self._leading_to(others)
        for ordinal, what in self.added.items():
            if isinstance(what, RepeatedCall) and ordinal in side and ordinal not in main:
                what.is_target = True

    def _leading_to(self, wanted: set[int]) -> set[int]:
        found: set[int] = set()
        for ordinal, (given, output) in reversed(self._passed.items()):
            if ids_in(output) & wanted:
                found.add(ordinal)
                wanted = wanted | given
        return found

    def fail(self, stage: str, error: BaseException) -> None:
        """Note where the sample failed; the innermost stage is the one that is noted."""
        if self.error is None:
            self.failed_stage = stage
            self.error = describe_error(error)

    # -- what is noted -------------------------------------------------------------------------

    def _listen(self, step: PipelineStep) -> drawn.Listener | None:
        hooks = drawn.hooks_of(step.target) if step.stage.random and not step.children else ()
        if not hooks:
            return None
        listener = drawn.Listener(step.target, hooks)
        listener.attach()
        return listener

    def _params(
        self, step: PipelineStep, listener: drawn.Listener | None, ran: list[int], *, changed: bool
    ) -> str | None:
        if step.children:
            return _container_params(step, ran) if ran or not changed else None
        try:
            if step.stage.random and (kept := drawn.last_parameters(step.target)) is not None:
                return drawn.as_json(step.target, kept)
            if listener is None:
                return None
            if listener.drawn is None and drawn.asks_when_fired(step.target):
                return _NOT_FIRED
            return drawn.as_json(step.target, listener.drawn)
        except Exception as error:
            self.problem = self.problem or f"what {step.stage.name} drew could not be noted: {describe_error(error)}"
            return None

    def _digest_of(self, value: Any) -> str | None:
        if value is self._value and self._digest is not None:
            return self._digest
        begun = time.perf_counter_ns()
        self._pause_calls(1)
        try:
            return values.digest(value)
        except Exception as error:
            self.problem = self.problem or f"a value could not be digested: {describe_error(error)}"
            return None
        finally:
            self._pause_calls(-1)
            self._overhead += time.perf_counter_ns() - begun

    def _pause_calls(self, by: int) -> None:
        """Observe no calls while a value is described: these are not stages."""
        if self.calls is not None:
            self.calls.paused += by

    def _note(
        self,
        ordinal: int,
        value: Any,
        came_in: str | None,
        nanoseconds: int,
        params: str | None,
        *,
        is_target: bool = False,
    ) -> None:
        begun = time.perf_counter_ns()
        self._pause_calls(1)
        try:
            facts = values.observe(value) if self._level != "verify" else _only_digest(value)
            is_known = facts.digest is not None and (came_in is not None or ordinal == 0)
            row = Row(facts, facts.digest != came_in if is_known else None, params, nanoseconds / 1000)
            self._keep(row, value)
            self.rows[ordinal] = row
            if not is_target:
                self._value, self._digest, self._last = value, facts.digest, row
        except Exception as error:
            self.problem = self.problem or f"an output could not be described: {describe_error(error)}"
        self._pause_calls(-1)
        self._overhead += time.perf_counter_ns() - begun

    def _keep(self, row: Row, value: Any) -> None:
        """Keep the payload that the level asks for; what did not change is not kept twice."""
        last = self._last
        if (
            row.changed is False
            and last is not None
            and last.facts.digest == row.facts.digest
            and last.facts.mode == row.facts.mode
        ):
            row.preview, row.full, row.shared = last.preview, last.full, True
            return
        if self._level in ("preview", "full"):
            row.preview = values.preview(value)
        if self._level == "full":
            row.full = values.encode(value)

    def end(self) -> None:
        """Let go of the values, and fill in the stages that were passed over."""
        self._value = self._last = None
        self._passed = {}
        self.route = list(self.rows)
        if self.calls is not None:
            self.calls.forget_values()
        if self.error is None:
            self._fill()

    def _fill(self) -> None:
        """Add a row for each stage that a random container was seen to pass over: its value is that of the stage before.

        Of any other stage without a row it is not known whether it ran, and nothing is said.
        """
        passed_over = self._passed_over()
        before = {False: self.rows.get(0), True: None}
        for step in self._pipeline.steps[1:]:
            ordinal, is_target = step.stage.stage, step.stage.is_target
            row = self.rows.get(ordinal)
            if row is None and ordinal in passed_over and (last := before[is_target]) is not None:
                row = Row(last.facts, False, _NOT_FIRED, 0.0)
                row.preview, row.full, row.shared = last.preview, last.full, True
                self.rows[ordinal] = row
            before[is_target] = row or before[is_target]

    def _passed_over(self) -> set[int]:
        """Return the stages below containers that ran without calling them."""
        found: set[int] = set()
        for step in self._pipeline.steps:
            own = self.rows.get(step.stage.stage) if step.children else None
            if own is None:
                continue
            below = {ordinal for child in step.children for ordinal in child}
            # A container that changed its value, though no stage below it was seen, called them in a way of its own.
            if not own.changed or any(ordinal in self.rows for ordinal in below):
                found |= below
        return found

    def add_calls(self, earlier: Visit) -> None:
        """Take in another call that was made for the same sample before: what ran in both is recorded twice."""
        own, own_added, rows = self.rows, self.added, dict(earlier.rows)
        self.added = dict(earlier.added)
        known = {earlier.path_of(ordinal) for ordinal in rows}
        for ordinal, row in own.items():
            if ordinal == 0:
                rows.setdefault(0, row)
                continue
            what = own_added[ordinal] if ordinal >= INSIDE else None
            stage = self._pipeline.steps[ordinal].stage if what is None else None
            path = stage.path if stage is not None else _path_of(what)
            if path not in known:
                rows[ordinal if what is None else self._add(what)] = row
                continue
            base = stage or inside_stage(path.removeprefix("inside."))
            number = next(n for n in itertools.count(2) if f"{path}#{n}" not in known)
            if isinstance(what, ObservedCall):
                what.label = f"{what.label}#{number}"
                rows[self._add(what)] = row
            else:
                rows[self._add(RepeatedCall(base, number))] = row
            known.add(f"{path}#{number}")
        self.rows = rows
        self.source_digest = earlier.source_digest or self.source_digest
        self.source_bytes = earlier.source_bytes or self.source_bytes
        self.opened[:0] = earlier.opened
        self.problem = self.problem or earlier.problem

    # -- rows ----------------------------------------------------------------------------------

    def write(
        self, index: int, position: int, outputs: Columns, payloads: Columns, numbers: Mapping[int, int] | None = None
    ) -> None:
        """Append this visit's rows of `stage_outputs` and `payloads`; `numbers` are those of stages not known before."""
        for ordinal in sorted(self.rows):
            number = ordinal if ordinal < INSIDE or numbers is None else numbers[ordinal]
            self.rows[ordinal].write(index, position, number, self._name_of(ordinal), outputs, payloads)

    def _name_of(self, ordinal: int) -> str:
        if ordinal < INSIDE:
            return self._pipeline.steps[ordinal].stage.name
        what = self.added[ordinal]
        if isinstance(what, RepeatedCall):
            return what.stage.name
        return what if isinstance(what, str) else name_of(what.target)


def _path_of(what: str | ObservedCall | RepeatedCall | None) -> str:
    return inside_stage(what).path if isinstance(what, str) else what.path if what is not None else ""


def _repeats(what: str | ObservedCall | RepeatedCall, name: str) -> bool:
    return isinstance(what, RepeatedCall) and what.stage.path == inside_stage(name).path


@dataclass(slots=True)
class CallToken:
    """What is known of a call before it is made."""

    step: PipelineStep
    came_in: str | None
    listener: drawn.Listener | None
    overhead: int

    def detach(self) -> None:
        """Stop listening to what the callable draws."""
        if self.listener is not None:
            self.listener.detach()


def _only_digest(value: Any) -> Facts:
    """Return what a replay compares, without the cost of statistics."""
    digest, size = values.fingerprint(value)
    return Facts(values.kind_of(value).name, digest=digest, bytes=size)


def _container_params(step: PipelineStep, ran: list[int]) -> str:
    order = []
    for ordinal in ran:
        place = next((n for n, below in enumerate(step.children) if ordinal in below), None)
        if place is not None and place not in order:
            order.append(place)
    fired = "true" if order else "false"
    names = {"RandomChoice": "choice", "RandomOrder": "order", "OneOf": "choice"}
    key = names.get(type(step.target).__name__, "ran")
    chosen = (order[0] if order else "null") if key == "choice" else order
    return f'{{"fired": {fired}, "{key}": {chosen}}}'


def describe_error(error: BaseException) -> str:
    """Return the error as one text, made where it happened: an exception itself may not survive pickling."""
    try:
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
    except Exception:
        text = f"{type(error).__name__} (which cannot be shown)"
    # A lone surrogate, as in a file name that is not UTF-8, cannot be stored as text.
    return text.encode("utf-8", "backslashreplace").decode()[:2000]
