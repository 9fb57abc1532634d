"""Takes in the calls of a loop's models, and writes the rows that they complete."""

from __future__ import annotations

from typing import Any

import torch

from audit.recorders.loop.dataset_proxy import Channel
from audit.recorders.loop.recording_state import RecordingState
from audit.recorders.loop.unmatched_calls import UnmatchedCalls
from audit.recorders.model.call_recorder import CallRecorder
from audit.recorders.model.recorded_model import RecordedModel
from audit.recorders.model.step import ModelStep
from audit.recorders.problems import Problems


class CallReceiver:
    """What a recording does with the calls of its models. Called from any thread."""

    def __init__(
        self, state: RecordingState, problems: Problems, recorder: CallRecorder, channels: list[Channel]
    ) -> None:
        self._state = state
        self._problems = problems
        self._recorder = recorder
        self._channels = channels
        self._unmatched = UnmatchedCalls()

    def begin(
        self, watched: RecordedModel, input_tensor: torch.Tensor | None, arguments: list[Any]
    ) -> ModelStep | None:
        """Return the step of a call that is about to be made; None when it is not recorded."""
        if not self._state.is_open:
            return None
        step = None
        with self._problems.guard():
            for channel in self._channels:
                channel.wait_for_delivery()
            with self._state.lock:
                step = self._recorder.begin(watched, input_tensor, arguments)
                if step is None:
                    self._unmatched.add("unmatched" if self._state.has_samples else "early")
                self._state.write(self._recorder.take_rows())
        return step

    def finish(self, watched: RecordedModel, step: ModelStep, input_tensor: torch.Tensor | None, output: Any) -> None:
        """Take in what a call returned."""
        if not self._state.is_open:
            return
        with self._state.guard():
            self._state.write(self._recorder.confirm(watched, step))
            self._state.write(self._recorder.read_output(watched, step, input_tensor, output))

    def report(self) -> None:
        """Write the calls that are left, and mark the run with those that could not be recorded."""
        self._state.write(self._recorder.take_rest())
        self._unmatched.report(
            self._recorder.models,
            self._state.batches,
            self._problems,
            has_samples=self._state.has_samples or self._state.has_logged,
        )
