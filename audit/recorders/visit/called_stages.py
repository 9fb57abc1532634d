"""Stages that a visit finds by their calls (see calls/observed_calls.py), and the numbers of all its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from audit import values
from audit.recorders.calls.data_values import ids_in
from audit.recorders.calls.observed_calls import ObservedCall, arguments_of
from audit.recorders.stages.call_parameters import listen, parameters_of
from audit.recorders.stages.describe import name_of
from audit.recorders.stages.discover import Pipeline, PipelineStep, looks_random
from audit.recorders.stages.drawn_parameters import Listener
from audit.recorders.visit.error_text import describe_error
from audit.recorders.visit.stage_row import Row
from audit.recorders.visit.visit_source import VisitSource
from audit.recorders.visit.visit_stages import AddedStage, VisitStages
from audit.records import Stage

_NONE_ADDED: Mapping[int, AddedStage] = MappingProxyType({})


class CalledStages(VisitSource):
    """Notes calls that are stages, beside those of the pipeline."""

    # What most visits leave as it is.
    _stages: VisitStages | None = None
    _pipeline: Pipeline
    #: Pairs of stages between which the first one's output was changed in place; ("", name) where `name` is the first
    #: stage, and what it was given was not seen.
    changed_in_place: Sequence[tuple[str, str]] = ()

    @property
    def stages(self) -> VisitStages:
        """Which stages the visit met, and their numbers."""
        if self._stages is None:
            self._stages = VisitStages(self._pipeline)
        return self._stages

    @property
    def added_stages(self) -> Mapping[int, AddedStage]:
        """By ordinal, the stages that were not known before the visit."""
        return self._stages.added if self._stages is not None else _NONE_ADDED

    def note_loaded_again(self, value: Any, nanoseconds: int) -> None:
        """Note a further file that was decoded for the same sample, such as the second of a pair."""
        self._note(self.stages.add_repeated(self._pipeline.steps[0].stage), value, None, nanoseconds, None)

    def path_of(self, ordinal: int) -> str:
        """Return the path that names a stage in the run, for one of this visit's ordinals."""
        return self.stages.path_of(ordinal)

    @property
    def last_stage(self) -> str | None:
        """The path and name of the last stage on the way to the model that ran."""
        last = next((n for n in reversed(self.rows) if n and not self.stages.is_target(n)), None)
        return None if last is None else f"{self.path_of(last)} ({self.stages.name_of(last)})"

    @property
    def last_row(self) -> Row | None:
        """What the last stage on the way to the model left; None where nothing was noted."""
        if self._stages is None and not self._pipeline.has_targets:
            return self.rows[max(self.rows)] if self.rows else None
        ordinals = [n for n in self.rows if not self.stages.is_target(n)]
        return self.rows[max(ordinals)] if ordinals else None

    def _digest_input(self, value: Any, path: str) -> str | None:
        """Return the digest of what a stage is given, and note where it was changed in place since the last stage."""
        if value is self._value and self._digest is not None and not self._is_changed_in_place():
            return self._digest
        digest = self._digest_now(value)
        if value is self._value and self._digest is not None and digest != self._digest:
            self.changed_in_place = [*self.changed_in_place, (self.last_stage or "load", path)]
        return digest

    def before_call(self, target: Any, value: Any, label: str) -> CallToken:
        """Note that a call which may be a stage is about to be made."""
        if 0 not in self.rows:
            # The dataset decoded the source by itself: what its first stage is given is the load.
            self.note_loaded(value)
            if self.calls is not None:
                self.calls.loaded = ids_in(value)
        step = PipelineStep(Stage(0, "", name_of(target), "", None, looks_random(target)), [], target)
        return CallToken(step, self._digest_input(value, label), listen(step), self._overhead)

    def after_call(self, call: ObservedCall, token: CallToken, nanoseconds: int) -> None:
        """Note what a call that is a stage has returned."""
        spent = nanoseconds - (self._overhead - token.overhead)
        params = self._params(token.step, token.listener, [], changed=True) or arguments_of(call)
        call.ordinal = self.stages.add(call)
        self._note(call.ordinal, call.output, token.input_digest, spent, params)

    def rename_call(self, call: ObservedCall) -> None:
        """Note that a call goes by the name of the function that made it, and by its arguments."""
        row = self.rows[call.ordinal]
        row.params = arguments_of(call) or row.params

    def is_unchanged(self, call: ObservedCall) -> bool:
        """Return whether the output of an earlier call is still what was noted; it may have been changed in place."""
        row = self.rows.get(call.ordinal)
        return row is not None and values.digest(call.output) == row.facts.digest

    def _params(self, step: PipelineStep, listener: Listener | None, ran: list[int], *, changed: bool) -> str | None:
        try:
            return parameters_of(step, listener, ran, changed=changed)
        except Exception as error:
            self.problem = self.problem or f"what {step.stage.name} drew could not be noted: {describe_error(error)}"
            return None


@dataclass(slots=True)
class CallToken:
    """What is known of a call before it is made."""

    step: PipelineStep
    input_digest: str | None
    listener: Listener | None
    overhead: int

    def detach(self) -> None:
        """Stop listening to what the callable draws."""
        if self.listener is not None:
            self.listener.detach()
