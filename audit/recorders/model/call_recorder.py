"""Records the calls of models: which samples each call was given, and the rows of what it returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from audit.metrics.source_space import SourceSpace, spaces_by_visit
from audit.models.meaning import OutputMeaning
from audit.models.task_outputs import TaskOutput, is_losses
from audit.recorders.capture_level import CaptureLevel
from audit.recorders.model.batch_tracker import BatchTracker
from audit.recorders.model.match import BatchMatch, BatchMatcher, Unmatched
from audit.recorders.model.mix_parents import MixRecorder
from audit.recorders.model.model_calls import ModelCalls
from audit.recorders.model.optimizers import OptimizerWatch
from audit.recorders.model.ports import add_ports
from audit.recorders.model.predictions import describe_label_problem
from audit.recorders.model.recorded_model import RecordedModel
from audit.recorders.model.row_digests import row_digests
from audit.recorders.model.run_numbers import RunNumbers
from audit.recorders.model.step import ModelStep, Place
from audit.recorders.model.task_rows import TaskContext, TaskRows, make_task_rows
from audit.recorders.model.unpredicted_batch import BatchRows, item_targets_of, targets_of
from audit.recorders.model.waiting_batches import WaitingBatches
from audit.recorders.problems import Problems
from audit.recorders.ranks import rank
from audit.records import Run


class CallRecorder:
    """Makes a step of each call of a recorded model, and rows of each step. Used by one thread at a time."""

    def __init__(
        self,
        run: Run,
        problems: Problems,
        *,
        numbers: RunNumbers,
        batches: WaitingBatches,
        mixes: MixRecorder,
        tracker: BatchTracker,
        level: CaptureLevel,
    ) -> None:
        self._run = run
        self._problems = problems
        self._numbers = numbers
        self._batches = batches
        self._mixes = mixes
        self._tracker = tracker
        self._level = level
        self._matcher = BatchMatcher(batches, tracker)
        self._calls = ModelCalls(run.run_id)
        self._models: list[RecordedModel] = []
        self._optimizers: OptimizerWatch | None = None

    @property
    def models(self) -> Sequence[RecordedModel]:
        """The recorded models, in the order in which they were added."""
        return self._models

    def add(self, watched: RecordedModel) -> None:
        """Record this model from now on."""
        self._models.append(watched)
        self._tracker.follow()
        if self._optimizers is None:
            self._optimizers = OptimizerWatch(self._problems, self._tracker)
        self._optimizers.watch(watched)

    def remove_hooks(self) -> None:
        """Take every hook off the models and the optimizers."""
        for watched in self._models:
            watched.remove()
        if self._optimizers is not None:
            self._optimizers.remove()

    def begin(self, watched: RecordedModel, given: torch.Tensor | None, arguments: list[Any]) -> ModelStep | None:
        """Return the step of a call that is about to be made; None when its samples are not known."""
        phase = "train" if watched.model.training else "eval"
        length = int(given.shape[0]) if given is not None and given.dim() else None
        facts: dict[str, Any] = {"model": watched.name, "phase": phase, "rows": length, "rank": rank()}
        facts["other_mode"] = watched.layers_in_other_mode() or None
        try:
            # What is computed from the input is not an operation of the loop.
            with self._tracker.paused():
                match = self._matcher.find(given, arguments)
        except Unmatched as error:
            self._calls.add(**facts, samples=0, reason=str(error))
            return None
        step = self._make_step(watched, phase, match)
        step.call = self._calls.add(
            **(facts | {"rows": len(match.rows)}),
            epoch=step.epoch,
            step=step.number,
            samples=len(step.rows),
            evidence=match.evidence,
            operations=list(match.operations) or None,
        )
        return step

    def _make_step(self, watched: RecordedModel, phase: str, match: BatchMatch) -> ModelStep:
        inputs = [number for number, row in enumerate(match.rows) if row is not None]
        rows = [row for row in match.rows if row is not None]
        home, place = rows[0]
        if home.loose and home.batches[place] is None:
            self._number_loose(rows)
        before = next((step for step in home.steps if step.rows[0] == rows[0]), None)
        return ModelStep(
            run_id=self._run.run_id,
            number=before.number if before is not None else self._numbers.step,
            epoch=home.epoch,
            batch=home.batches[place],
            phase=phase,
            rank=rank(),
            rows=rows,
            inputs=inputs,
            size=len(match.rows),
            digests=[match.digests[n] for n in inputs] if match.digests is not None else None,
            operations=match.operations,
            model=watched.name,
            order=self._models.index(watched),
            follows=before is not None,
            repeats=any(place in batch.predicted.get(id(watched), ()) for batch, place in rows),
        )

    def _number_loose(self, rows: list[Place]) -> None:
        """Give samples of a recorded dataset the number of the batch that they are called in."""
        number = self._numbers.take_batch(rows[0][0].epoch)
        for position, (batch, place) in enumerate(rows):
            batch.batches[place], batch.positions[place] = number, position

    def confirm(self, watched: RecordedModel, step: ModelStep) -> list[BatchRows]:
        """Note that a call went through: its samples have a prediction of this model. Return the rows that are ready."""
        rows: list[BatchRows] = []
        for batch, place in step.rows:
            batch.predicted.setdefault(id(watched), set()).add(place)
        home, _ = step.rows[0]
        if not home.written:
            home.steps.append(step)
        elif not step.follows:
            rows.append(BatchRows(tables={"steps": step.table()}))
        rows += self._batches.confirm(step)
        rows += self._mixes.take_rows(home, len(step.rows))
        if not step.follows:
            self._numbers.take_step()
            if self._optimizers is not None:
                self._optimizers.set_step(step)
        return rows

    def read_output(
        self, watched: RecordedModel, step: ModelStep, given: torch.Tensor | None, output: Any
    ) -> list[BatchRows]:
        """Make predictions of what a call returned. Return those of batches that are written already."""
        if not watched.reader.is_read or is_losses(output):
            return []
        task = watched.reader.read_task(output, step.size, item_targets_of(step.rows))
        if task is not None:
            return self._read_task(watched, step, given, task)
        given_values = watched.reader.values(output, step.size)
        if watched is self._models[0]:
            # The same weights give other logits in another precision or on another device: a diff names them.
            self._run.recipe.setdefault("output_dtype", str(given_values.dtype).removeprefix("torch."))
            self._run.recipe.setdefault("output_device", given_values.device.type)
        values = given_values[step.inputs].float().cpu().clone()
        labels = [batch.labels[place] for batch, place in step.rows]
        targets = targets_of(step.rows)
        meaning, is_new = watched.reader.find_meaning(values, labels, targets)
        if is_new:
            self._note_meaning(watched, meaning)
        problem = describe_label_problem(labels, values.shape[1], meaning.kind)
        if problem is not None:
            self._problems.mark(f"The output of the model {watched.name}: {problem}")
        digests = step.digests or row_digests(given, step.rows, step.inputs)
        step.predict(values, labels, digests, meaning.kind, targets)
        step.task = TaskRows()
        add_ports(step.task, output, step.inputs, step.size)
        return self._add_predictions(step)

    def _read_task(
        self, watched: RecordedModel, step: ModelStep, given: torch.Tensor | None, output: TaskOutput
    ) -> list[BatchRows]:
        """Make predictions of boxes, masks or tokens."""
        meaning, is_new = watched.reader.note_task(output.kind)
        if is_new:
            self._note_meaning(watched, meaning)
        context = TaskContext(
            inputs=step.inputs,
            targets=item_targets_of(step.rows),
            classes=step.rows[0][0].classes,
            level=self._level.get(),
            spaces=_spaces_of(step) if output.kind == "boxes" else (),
            tokens=given if output.kind == "tokens" else None,
        )
        task = make_task_rows(output, context)
        for problem in task.problems:
            self._problems.mark(f"The output of the model {watched.name}: {problem}")
        labels = [batch.labels[place] for batch, place in step.rows]
        step.predict_task(task, labels, step.digests or row_digests(given, step.rows, step.inputs))
        return self._add_predictions(step)

    def _add_predictions(self, step: ModelStep) -> list[BatchRows]:
        rows: list[BatchRows] = []
        for batch in {id(batch): batch for batch, _ in step.rows}.values():
            if batch.written:
                # The loop came back to a batch that it had left.
                rows.append(BatchRows(tables=step.tables_of(batch)))
            else:
                batch.predictions.append(step)
        return rows

    def _note_meaning(self, watched: RecordedModel, meaning: OutputMeaning) -> None:
        """Keep on the run what the graded model's output means, and warn where that is not evident."""
        run = self._run
        if watched is self._models[0] or run.output is None:
            run.output, run.task, run.output_evidence = meaning.kind, meaning.task, meaning.evidence
        if meaning.doubt is not None:
            self._problems.mark(f"The output of the model {watched.name}: {meaning.doubt}")

    def take_rows(self) -> list[BatchRows]:
        """Return the rows of `calls`, if enough have gathered."""
        return self._calls.take_rows()

    def take_rest(self) -> list[BatchRows]:
        """Return the rows of `calls` that are left."""
        return self._calls.take_rows(least=1)


def _spaces_of(step: ModelStep) -> list[SourceSpace | None]:
    """Return where each sample's input lies in its source; None where that is not known."""
    if step.operations:
        return [None] * len(step.rows)
    known: dict[int, dict[tuple[int, int], SourceSpace | None]] = {}
    for batch, _ in step.rows:
        if id(batch) not in known:
            known[id(batch)] = spaces_by_visit(batch.tables.get("stage_outputs"), batch.own_stages)
    return [known[id(batch)].get((batch.indices[place], batch.visits[place])) for batch, place in step.rows]
