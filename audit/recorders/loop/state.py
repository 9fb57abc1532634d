"""What a recording knows while it is open, and the rows that it hands to the writer.

Loaders, datasets and models tell it what happens (see loader.py, proxy.py and watching.py); users talk to `Recording`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from audit.errors import plainly
from audit.models.meaning import OutputMeaning
from audit.models.outputs import logits_of
from audit.recorders.calls.unseen_changes import WHOLE_BATCHES, tell_unrecorded
from audit.recorders.envelope import RecordedBatch
from audit.recorders.loop.capture_plan import CapturePlan
from audit.recorders.loop.dataset_proxy import Channel
from audit.recorders.loop.expected_draws import ExpectedDraws, draws_of
from audit.recorders.loop.fork_safety import WRITING
from audit.recorders.loop.intake import Intake
from audit.recorders.loop.loader import Iteration, RecordedLoader
from audit.recorders.loop.logged import logged_tables
from audit.recorders.loop.numbering import EpochClock
from audit.recorders.loop.ranks import rank
from audit.recorders.loop.unmatched_calls import UnmatchedCalls
from audit.recorders.model import mixing
from audit.recorders.model.activations import activation_table
from audit.recorders.model.hooks import RecordedModel
from audit.recorders.model.match import BatchMatcher, Unmatched, UnpredictedBatch, row_digests, targets_of
from audit.recorders.model.mix_parents import MixRecorder
from audit.recorders.model.model_calls import ModelCalls
from audit.recorders.model.optimizers import OptimizerWatch
from audit.recorders.model.predictions import prediction_columns
from audit.recorders.model.step import ModelStep
from audit.recorders.problems import Problems, RecordingWarning
from audit.recorders.stages.discover import Pipeline
from audit.recorders.visit.items import label_number
from audit.recorders.visit.stage_register import StageRegister
from audit.records import Run
from audit.store import wire as rows
from audit.store.write.background import BackgroundWriter
from audit.store.write.payload_filter import Selection
from audit.store.write.writer import RunWriter


class RecordingState:
    """Everything between the loop and the writer. Every method may be called from any thread."""

    def __init__(
        self, store: str, row: Run, *, capture: str, capture_budget: int, capture_where: str | None, strict: bool
    ) -> None:
        self.problems = Problems(row.warnings, strict=strict)
        self.plan = CapturePlan(capture, capture_budget, row, self.problems)
        self._selection = Selection(capture_where) if capture_where else None
        self._writer = RunWriter.create(store, row)
        self._background = BackgroundWriter(self._writer)
        self._process = os.getpid()
        self._closed = False
        self._lock = threading.RLock()
        self.clock = EpochClock()
        self.channels: list[Channel] = []
        self.models: list[RecordedModel] = []
        self._optimizers: OptimizerWatch | None = None
        self.intake = Intake(row, self.problems, self.plan, StageRegister(row.run_id))
        self.passes = ExpectedDraws(lambda: self.run)
        self._parentage = MixRecorder(row.run_id, self._submit)
        self._waiting = BatchMatcher(self._write, self._spill)
        self.tracker = self._waiting.tracker
        self._batch = 0
        self._step = 0
        self._last_step: ModelStep | None = None
        self._unseen = UnmatchedCalls()
        self._calls = ModelCalls(row.run_id, self._submit)
        self._told_of_end = False
        #: Whether any sample has come.
        self._arrived = False
        mixing.subscribe(self._mixed)

    @property
    def open(self) -> bool:
        """Whether anything is recorded here."""
        return not self._closed and os.getpid() == self._process

    @property
    def run(self) -> Run:
        """The run's row as it stands."""
        return self._writer.run

    @property
    def location(self) -> str:
        """Where the store is."""
        return self._writer.location

    def add_source(self, key: int, pipeline: Pipeline, split: str | None, length: int) -> None:
        """A loader or a dataset that will send rows under this key."""
        self.intake.add(key, pipeline, split, length)
        mixing.install()

    def set_epoch(self, number: int) -> None:
        """The user says which epoch it is."""
        self.clock.tell(number)
        for channel in self.channels:
            channel.epoch(number)

    # -- what loaders and datasets tell ----------------------------------------------------------

    def begin(self, loader: RecordedLoader) -> Iteration | None:
        """A loader is iterated anew; None when that is not recorded any more."""
        if self.open:
            return Iteration(self.clock.begin(id(loader)), draws=draws_of(loader._audit_base))
        if not self._told_of_end and os.getpid() == self._process:
            self._told_of_end = True
            warnings.warn("audit: the recording is closed; this loop is not recorded.", RecordingWarning, stacklevel=4)
        return None

    def receive(self, loader: RecordedLoader, envelope: RecordedBatch, iteration: Iteration) -> None:
        """A batch is about to be given to the loop."""
        if not self.open:
            return
        with self.problems.caught(), self._lock:
            self._parentage.settle(self._waiting.newest)
            number, self._batch = self._batch, self._batch + 1
            pending = self._unwrap(id(loader), envelope, iteration.epoch, number, iteration)
            if pending is None:
                return
            self._arrived = True
            if envelope.mixed is not None:
                self._parentage.mixed(pending, envelope.mixed)
            if envelope.error is not None:
                self._write(pending)
            else:
                self._waiting.add(pending)
                self._waiting.track(envelope.data, pending)
                if self.models:
                    self.tracker.follow()

    def _unwrap(
        self, key: int, envelope: RecordedBatch, epoch: int, number: int | None, iteration: Iteration | None
    ) -> UnpredictedBatch | None:
        pending = self.intake.unwrap(key, envelope, epoch, number, iteration)
        if (stages := self.intake.stages.take_rows()) is not None:
            self._submit({"stages": stages})
        return pending

    def receive_loose(self, key: int, envelope: RecordedBatch) -> None:
        """Items of a recorded dataset."""
        if not self.open:
            return
        with self.problems.caught(), self._lock:
            epoch = envelope.epoch if envelope.epoch is not None else self.clock.now
            pending = self._unwrap(key, envelope, epoch, None, None)
            if pending is None:
                return
            self._arrived = True
            if self.models and pending.ok:
                self._waiting.add_loose(pending)
            else:
                self._write(pending)

    def ended(self, loader: RecordedLoader, iteration: Iteration) -> None:
        """A pass over a loader has come to its end."""
        if self.open and iteration.draws is not None:
            with self.problems.caught(), self._lock:
                draws, iteration.draws = iteration.draws, None
                self.passes.whole(id(loader), iteration.epoch, draws)

    def broke(self, error: BaseException) -> None:
        """A loader raised by itself: a worker died, or took too long."""
        if self.open and isinstance(error, Exception):
            self.problems.mark(f"A loader failed: {type(error).__name__}: {str(error)[:500]}", loud=False)

    def unrecordable(self, error: BaseException) -> None:
        """Workers can be given the user's dataset, but not the recorded one."""
        with self.problems.caught():
            raise RuntimeError(f"the workers could not be started with the recording: {error}") from error

    def unheard(self, loader: RecordedLoader) -> None:
        """A loader gave a batch that it fetched with an iterator made before it was recorded."""
        kind = type(loader._audit_loader).__name__
        with self.problems.caught():
            raise RuntimeError(
                f"batches of this {kind} are not seen: it began to fetch before it was recorded. "
                "Give it run.dataset(dataset) when it is made, instead of run.loader afterwards."
            )

    # -- what models and optimizers tell ---------------------------------------------------------

    def watch(self, watched: RecordedModel) -> None:
        """A model to be recorded from now on."""
        self.models.append(watched)
        self.tracker.follow()
        if self._optimizers is None:
            self._optimizers = OptimizerWatch(self._stepped, self.problems, self.tracker)
        self._optimizers.watch(watched.model)

    def before_call(self, watched: RecordedModel, given: torch.Tensor | None, arguments: list[Any]) -> ModelStep | None:
        """A model is about to be called: the step, with its samples; None when they are not known."""
        if not self.open:
            return None
        step = None
        with self.problems.caught():
            for channel in self.channels:
                channel.settle()
            with self._lock:
                step = self._begin_step(watched, given, arguments)
        return step

    def _begin_step(self, watched: RecordedModel, given: torch.Tensor | None, arguments: list[Any]) -> ModelStep | None:
        phase = "train" if watched.model.training else "eval"
        length = int(given.shape[0]) if given is not None and given.dim() else None
        facts = {"model": watched.name, "phase": phase, "rows": length, "rank": rank()}
        try:
            match = self._waiting.find(given, arguments)
        except Unmatched as error:
            self._calls.add(**facts, samples=0, reason=str(error))
            self._unseen.call("unmatched" if self._arrived else "early")
            return None
        inputs = [number for number, row in enumerate(match.rows) if row is not None]
        rows = [row for row in match.rows if row is not None]
        first, _ = rows[0]
        if first.loose and first.batches[rows[0][1]] is None:
            number, self._batch = self._batch, self._batch + 1
            for position, (pending, place) in enumerate(rows):
                pending.batches[place], pending.positions[place] = number, position
        batch = first.batches[rows[0][1]]
        before = next((step for step in first.steps if step.rows[0] == rows[0]), None)
        number = before.number if before is not None else self._step
        digests = [match.digests[n] for n in inputs] if match.digests is not None else None
        step = ModelStep(
            self.run.run_id,
            number,
            first.epoch,
            batch,
            phase,
            rank(),
            rows,
            inputs,
            len(match.rows),
            digests,
            match.operations,
            model=watched.name,
            order=self.models.index(watched),
        )
        step.follows = before is not None
        step.repeats = any(place in pending.predicted.get(id(watched), ()) for pending, place in rows)
        operations = list(match.operations) or None
        step.call = self._calls.add(
            **facts,
            epoch=first.epoch,
            step=number,
            samples=len(rows),
            evidence=match.evidence,
            operations=operations,
        )
        return step

    def after_call(self, watched: RecordedModel, step: ModelStep, given: torch.Tensor | None, output: Any) -> None:
        """A model has returned."""
        if not self.open:
            return
        with self.problems.caught(), self._lock:
            self._take_step(watched, step)
            if not watched.reader.is_read:
                return
            values = watched.reader.values(output, step.size)[step.inputs].float().cpu().clone()
            labels = [pending.labels[place] for pending, place in step.rows]
            targets = targets_of(step.rows)
            meaning, is_new = watched.reader.find_meaning(values, labels, targets)
            if is_new:
                self._note_meaning(watched, meaning)
            digests = step.digests or row_digests(given, step.rows, step.inputs)
            step.predict(values, labels, digests, meaning.kind, targets)
            for pending in {id(pending): pending for pending, _ in step.rows}.values():
                if pending.written:
                    # The loop came back to a batch that it had left.
                    self._submit({"predictions": step.predictions_of(pending)})
                else:
                    pending.predictions.append(step)

    def _note_meaning(self, watched: RecordedModel, meaning: OutputMeaning) -> None:
        """Keep on the run what the graded model's output means, and tell the user where that is not evident."""
        if watched is self.models[0] or self.run.output is None:
            self.run.output, self.run.task, self.run.output_evidence = meaning.kind, meaning.task, meaning.evidence
        if meaning.doubt is not None:
            self.problems.mark(f"The output of the model {watched.name}: {meaning.doubt}")

    def _take_step(self, watched: RecordedModel, step: ModelStep) -> None:
        """The call went through: its samples are this model's, and nobody predicts them again."""
        for pending, place in step.rows:
            pending.predicted.setdefault(id(watched), set()).add(place)
        home, _ = step.rows[0]
        if not home.written:
            home.steps.append(step)
        elif not step.follows:
            self._submit({"steps": step.table()})
        self._waiting.placed(step)
        self._parentage.settle(home, len(step.rows))
        if not step.follows:
            self._step += 1
            self._last_step = step

    def _stepped(self, rate: float | None, norm: float | None) -> None:
        """An optimizer is about to step."""
        step = self._last_step
        if not self.open or step is None or step.written:
            return
        step.learning_rate, step.gradient_norm = rate, norm
        for watched in self.models:
            if watched.layers is not None:
                watched.layers.parameter_gradients(step)

    def _mixed(self, mix: mixing.Mix) -> None:
        """A batch was mixed in the loop."""
        if self.open:
            with self._lock:
                self._parentage.heard(mix)

    def parents(self, weights: list[list[tuple[int, float]]], batch: int | None) -> None:
        """What the user says of the last batch, or of the one with this number."""
        with self._lock:
            last = self._waiting.newest
            epoch = last.epoch if last is not None else self.clock.now
            number = batch if batch is not None else (last.batches[0] if last is not None else self._batch)
            self._parentage.write(epoch, [number] * len(weights), [*range(len(weights))], weights)

    # -- rows ------------------------------------------------------------------------------------

    def _write(self, pending: UnpredictedBatch) -> None:
        tables = pending.tables
        if pending.loose and "samples" in tables:
            tables["samples"] = rows.placed(tables["samples"], pending.batches, pending.positions)
        if pending.predictions:
            ordered = sorted(pending.predictions, key=lambda step: step.order)
            tables["predictions"] = rows.joined([step.predictions_of(pending) for step in ordered])
            pending.predictions = []
        if pending.steps:
            leading = [step.table() for step in pending.steps if not step.follows]
            if leading:
                tables["steps"] = rows.joined(leading)
            activations = [table for step in pending.steps if (table := activation_table(step)) is not None]
            if activations:
                tables["activations"] = rows.joined(activations)
        for step in pending.steps:
            step.written = True
            step.seen.clear()
        self._submit(tables, pending.size, self._selection)
        # Tensors that the loop holds on to still lead here.
        pending.tables, pending.memory, pending.written = {}, [], True

    def _spill(self, pending: UnpredictedBatch) -> None:
        """Write what is large now; which payloads a condition would have kept is then not known any more."""
        heavy = {name: table for name, table in pending.tables.items() if name != "samples"}
        pending.tables = {"samples": pending.tables["samples"]}
        self._submit(heavy, pending.size, self._selection)

    def _submit(self, tables: Mapping[str, Any], size: int = 0, selection: Selection | None = None) -> None:
        if self._background.error is not None:
            raise self._background.error

        def work(writer: RunWriter) -> None:
            with WRITING:
                writer.append(selection.apply(dict(tables)) if selection is not None else dict(tables))

        self._background.submit(work, size)

    def log(self, indices: list[int], logits: torch.Tensor, labels: Any, epoch: int | None) -> None:
        """Predictions without a loader."""
        epoch = epoch if epoch is not None else self.clock.now
        known = [None] * len(indices) if labels is None else [label_number(label) for label in labels]
        predictions = prediction_columns(logits_of(logits.detach(), batch=len(indices)), known, self.run.classes)
        with self._lock:
            visits = [self.intake.visits.next(epoch, index) for index in indices]
            number, self._batch = self._batch, self._batch + 1
            step, self._step = self._step, self._step + 1
        self._submit(logged_tables(self.run.run_id, epoch, number, step, indices, visits, predictions))

    # -- the end ---------------------------------------------------------------------------------

    def close(self, status: str) -> Run:
        """Write what is left and end the run; every hook is gone."""
        try:
            self._take_in_the_rest()
        except BaseException as error:
            # Strict, or Ctrl-C. Nobody must take the run for one that goes on.
            self._closed = True
            self.problems.mark(f"The run stopped: {plainly(error)}", loud=False)
            with contextlib.suppress(Exception):
                self._background.finish("interrupted")
            raise
        self._closed = True
        return self._background.finish(status)  # type: ignore[arg-type]

    def _take_in_the_rest(self) -> None:
        mixing.unsubscribe(self._mixed)
        self.tracker.close()
        for watched in self.models:
            watched.remove()
        if self._optimizers is not None:
            self._optimizers.remove()
        for channel in self.channels:
            # torch's handler raises in the main thread, wherever that is, when a worker has died: here it waits for rows.
            with self.problems.caught():
                channel.close()
        with self.problems.caught(), self._lock:
            self._parentage.settle(self._waiting.newest)
            self._closed = True
            for pending in self._waiting.everything():
                self._write(pending)
            self.intake.stages.register_rest()
            if (stages := self.intake.stages.take_rows()) is not None:
                self._submit({"stages": stages})
            self._calls.flush()
            self._unseen.tell(self.models, self.problems)
            if texts := [text for text in self.run.unrecorded or () if not text.endswith(WHOLE_BATCHES)]:
                self.problems.mark(tell_unrecorded(texts))
