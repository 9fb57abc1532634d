"""Takes in what loaders and datasets of a loop made: numbers it, and lets it wait for predictions or writes it."""

from __future__ import annotations

import contextlib
import warnings

from torch.utils.data import IterableDataset

from audit.recorders.activity import Activity
from audit.recorders.envelope import RecordedBatch
from audit.recorders.loop.batch_intake import BatchIntake, order_targets
from audit.recorders.loop.expected_draws import ExpectedDraws, draws_of
from audit.recorders.loop.loader_recording import Iteration, LoaderRecording
from audit.recorders.loop.recording_state import RecordingState
from audit.recorders.model.match import track_batch
from audit.recorders.model.unpredicted_batch import BatchRows, UnpredictedBatch
from audit.recorders.problems import Problems, RecordingWarning


class BatchReceiver:
    """What a recording does with the batches of loaders and the items of datasets. Called from any thread."""

    def __init__(self, state: RecordingState, problems: Problems, intake: BatchIntake, draws: ExpectedDraws) -> None:
        self._state = state
        self._problems = problems
        self._intake = intake
        self._draws = draws
        self._batches = state.batches
        self._mixes = state.mixes
        self._numbers = state.numbers
        self._tracker = state.tracker
        self._stalls = state.stalls
        self._has_warned = False

    def new_activity(self) -> Activity:
        """Return a place where the processes of one more loader note what they are doing."""
        return self._stalls.new_activity()

    def pause_tracking(self) -> contextlib.AbstractContextManager[None]:
        """Observe no operation inside the block: what is done there is not a part of the loop."""
        return self._tracker.pause_inside()

    def expect_items(self) -> None:
        """Expect batches that the loop builds from the items of a recorded dataset."""
        self._tracker.track_unknown_tensors()

    def begin(self, loader: LoaderRecording) -> Iteration | None:
        """Begin a pass over a loader; return None when it is not recorded any more."""
        if self._state.is_open:
            return Iteration(self._state.begin_pass(id(loader)), draws=draws_of(loader.base))
        if not self._has_warned and self._state.is_own_process:
            self._has_warned = True
            warnings.warn("audit: the recording is closed; this loop is not recorded.", RecordingWarning, stacklevel=4)
        return None

    def receive(self, loader: LoaderRecording, envelope: RecordedBatch, iteration: Iteration) -> None:
        """Take in a batch that is about to be given to the loop."""
        if not self._state.is_open:
            return
        with self._state.guard():
            self._state.write(self._mixes.take_rows(self._batches.newest_batch))
            number = self._numbers.take_batch(iteration.epoch)
            batch = self._take_in(id(loader), envelope, iteration.epoch, number, iteration)
            if batch is None:
                return
            if envelope.layout is not None and envelope.layout.unplaced is not None and self._state.has_models:
                self._problems.mark(
                    f"Predictions were not stored for batches of the collate function {envelope.layout.unplaced}: it changed "
                    "the samples, and their content does not show which row is which sample. If row n of the batch is "
                    "sample n, put @audit.stage above it, or give collate_fn=audit.stage(...)."
                )
            if envelope.mixed is not None:
                self._state.write(self._mixes.rows_of(batch, envelope.mixed))
            batch.head_targets = {
                (model, head.name): order_targets(head.read_target(envelope.data, len(batch.ok)), envelope.layout)
                for model, head in self._state.heads
            }
            if envelope.error is not None:
                self._state.write([batch.take_rows()])
                return
            self._state.write(self._batches.add(batch))
            if not self._state.awaits_predictions:
                self._state.write(self._batches.take_large())
            track_batch(self._tracker, envelope.data, batch)
            if self._state.has_models or self._state.has_batch_stages:
                self._tracker.follow()

    def receive_items(self, key: int, envelope: RecordedBatch) -> None:
        """Take in items of a recorded dataset, whose batch is not known."""
        if not self._state.is_open:
            return
        with self._state.guard():
            epoch = envelope.made_in_epoch if envelope.made_in_epoch is not None else self._state.epoch
            batch = self._take_in(key, envelope, epoch, None, None)
            if batch is None:
                return
            if self._state.has_models and batch.ok:
                self._state.write(self._batches.add_loose(batch))
            else:
                self._state.write([batch.take_rows()])

    def _take_in(
        self, key: int, envelope: RecordedBatch, epoch: int, number: int | None, iteration: Iteration | None
    ) -> UnpredictedBatch | None:
        batch = self._intake.unwrap(key, envelope, epoch, number, iteration)
        self._state.write(self._intake.take_stages())
        self._state.has_samples |= batch is not None
        return batch

    def finish_pass(self, loader: LoaderRecording, iteration: Iteration) -> None:
        """Note that a pass over a loader has come to its end."""
        if not self._state.is_open or iteration.is_done:
            return
        iteration.is_done = True
        with self._state.guard():
            if iteration.draws is not None:
                self._draws.add_pass(self._state.run, id(loader), iteration.epoch, iteration.draws)
            elif isinstance(loader.base.dataset, IterableDataset):
                self._draws.add_stream(self._state.run, id(loader), iteration.epoch, iteration.arrived)

    def note_failure(self, error: BaseException) -> None:
        """Note that a loader raised by itself: a worker died, or took too long."""
        if self._state.is_open and isinstance(error, Exception):
            self._problems.mark(f"A loader failed: {type(error).__name__}: {str(error)[:500]}", loud=False)

    def note_unrecorded_workers(self, error: BaseException) -> None:
        """Note that workers can be given the user's dataset, but not the recorded one."""
        with self._problems.guard():
            raise RuntimeError(f"the workers could not be started with the recording: {error}") from error

    def note_unrecorded_iterator(self, loader: LoaderRecording) -> None:
        """Note that a loader gave a batch that it fetched with an iterator made before it was recorded."""
        kind = type(loader.loader).__name__
        self._problems.note(
            RuntimeError(
                f"batches of this {kind} are not recorded: it began to fetch before it was given to run.loader. "
                "Give it run.dataset(dataset) when it is made, instead of run.loader afterwards."
            )
        )

    def parent_rows(self, parents: list[list[tuple[int, float]]], number: int | None) -> BatchRows:
        """Return the rows of what the user says of the batch with this number, or of the last one."""
        last = self._batches.newest_batch
        epoch = last.epoch if last is not None else self._state.epoch
        if number is None:
            number = last.batches[0] if last is not None else self._numbers.next_batch(epoch)
        if last is not None and number == last.batches[0]:
            last.note_parents([[index for index, _ in pairs] for pairs in parents])
        weighted: list[list[tuple[int, float | None]]] = [[*pairs] for pairs in parents]
        return self._mixes.make_rows(epoch, [number] * len(parents), [*range(len(parents))], weighted)

    def remove_hooks(self) -> None:
        """Observe neither mixes nor tensors any more."""
        self._mixes.close()
        self._tracker.close()

    def finish(self) -> None:
        """Write all that waits, and the stages that no sample went through."""
        self._state.write(self._mixes.take_rows(self._batches.newest_batch))
        self._state.close()
        self._state.write(self._batches.take_rest())
        self._state.write(self._intake.take_stages(rest=True))
