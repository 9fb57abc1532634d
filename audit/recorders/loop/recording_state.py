"""The data of one open recording: its run, its epoch and numbers, and the rows on their way to the writer's thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator

from audit.errors import RecordingError
from audit.provenance import CommitQuery
from audit.recorders.lent_memory import forget_received
from audit.recorders.loop.fork_safety import WRITE_LOCK
from audit.recorders.loop.numbering import EpochClock
from audit.recorders.loop.stall_watch import StallWatch
from audit.recorders.model.batch_tracker import BatchTracker
from audit.recorders.model.graded_targets import GradedHead
from audit.recorders.model.mix_parents import MixRecorder
from audit.recorders.model.run_numbers import RunNumbers
from audit.recorders.model.unpredicted_batch import BatchRows
from audit.recorders.model.waiting_batches import WaitingBatches
from audit.recorders.problems import Problems
from audit.records import Run, Status
from audit.store.stamped_rows import join_stamped_tables
from audit.store.write.background import BackgroundWriter, Work
from audit.store.write.payload_filter import Selection
from audit.store.write.writer import RunWriter


class RecordingState:
    """What the parts of one recording share. It calls none of them."""

    def __init__(
        self, store: str, row: Run, problems: Problems, *, capture_where: str | None, stall_timeout: float = 600.0
    ) -> None:
        self._problems = problems
        self._selection = Selection(capture_where) if capture_where else None
        commit = CommitQuery()
        try:
            self._writer = RunWriter.create(store, row)
        except BaseException:
            commit.cancel()
            raise
        self._writer.on_loss = self._note_loss
        self.stalls = StallWatch(stall_timeout, problems)
        self._process = os.getpid()
        self._closed = False
        #: Held while the data below, or that of a part, is changed.
        self.lock = threading.RLock()
        self._clock = EpochClock()
        self.numbers = RunNumbers()
        self.batches = WaitingBatches()
        self.mixes = MixRecorder(row.run_id)
        self.tracker = BatchTracker()
        #: Whether any sample has come, and whether a model is recorded, so that samples wait for predictions.
        self.has_samples = False
        #: Whether `run.log` recorded any.
        self.has_logged = False
        self.has_models = False
        #: Outputs of models that have targets of their own: (name of the model, head).
        self.heads: list[tuple[str, GradedHead]] = []
        #: Whether the loop applies recorded transforms to whole batches.
        self.has_batch_stages = False
        # Last: its thread looks at all of the above.
        self._background = BackgroundWriter(self._writer, guard=WRITE_LOCK, on_tick=self._on_tick)
        # First of all, so that every commit has it; the loop does not wait for git.
        self._background.submit(lambda writer: setattr(writer.run, "git_commit", commit.answer()))

    @property
    def is_open(self) -> bool:
        """Whether anything is recorded: not after the end, and not in a process that was forked from this one."""
        return not self._closed and os.getpid() == self._process

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that began the recording."""
        return os.getpid() == self._process

    @property
    def run(self) -> Run:
        """The run's row as it stands."""
        return self._writer.run

    @property
    def location(self) -> str:
        """Where the store is."""
        return self._writer.location

    @property
    def epoch(self) -> int:
        """The epoch of what happens outside any loader."""
        return self._clock.current_epoch

    def set_epoch(self, number: int | None) -> None:
        """Count what happens from now on to this epoch; None counts epochs by the passes over each loader."""
        self._clock.set(number)

    def begin_pass(self, loader: int) -> int:
        """Return the epoch of a new pass over a loader, by its key."""
        forget_received()  # of the workers of the pass before
        return self._clock.begin(loader)

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Let no other thread in, and mark the run with what goes wrong inside; a strict recording raises it."""
        with self._problems.guard(), self.lock:
            yield

    @property
    def awaits_predictions(self) -> bool:
        """Whether predictions may come that batches have to wait for."""
        return self.has_models or self._selection is not None

    def _on_tick(self) -> None:
        """Warn of samples that take long while nothing arrives, and hand over a batch for which no model can predict anything."""
        self.stalls.look()
        if self.awaits_predictions or not self.lock.acquire(blocking=False):
            return
        try:
            # One at a time: this is the writer's own thread, which must not wait for itself.
            if self.is_open and (rows := self.batches.take_oldest()) is not None:
                self.write([rows])
        finally:
            self.lock.release()

    def write(self, rows: Iterable[BatchRows]) -> None:
        """Hand rows to the writer's thread. Raises what that thread could not write before."""
        for each in rows:
            if self._background.error is not None:
                raise self._background.error
            self._background.submit(self._work(each), each.size)

    def _work(self, rows: BatchRows) -> Work:
        selection = self._selection if rows.is_selected else None

        def work(writer: RunWriter) -> None:
            with WRITE_LOCK:
                if selection is None:
                    writer.append(rows.tables, rows.stamped, rows.size)
                else:
                    of_batch = rows.stamped.tables() if rows.stamped is not None else {}
                    writer.append(selection.apply(of_batch | join_stamped_tables([rows.tables])))

        return work

    def _note_loss(self, what: str) -> None:
        if self._problems.strict:
            raise RecordingError(f"Recording failed: {what}")
        self._problems.mark(f"A value could not be recorded: {what}")

    def close(self) -> None:
        """Record nothing more."""
        self._closed = True

    def finish(self, status: Status) -> Run:
        """Wait until all rows are written, and end the run."""
        self._closed = True
        try:
            return self._background.finish(status)
        finally:
            forget_received()
