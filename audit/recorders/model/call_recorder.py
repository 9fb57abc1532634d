"""Records the calls of models: which samples each call was given, and the rows of what it returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from audit.metrics.source_space import SourceSpace, spaces_by_visit
from audit.models.meaning import OutputMeaning, doubt_width
from audit.models.task_outputs import TaskOutput, is_losses
from audit.recorders.capture_plan import CapturePlan
from audit.recorders.model.batch_tracker import BatchTracker
from audit.recorders.model.call_rows import CallRows
from audit.recorders.model.graded_targets import GradedTargets, head_targets, sample_targets
from audit.recorders.model.match import BatchMatch, BatchMatcher, UnmatchedCall
from audit.recorders.model.mix_parents import MixRecorder
from audit.recorders.model.optimizers import OptimizerWatch
from audit.recorders.model.output_reader import OutputReader
from audit.recorders.model.predictions import prediction_columns
from audit.recorders.model.recorded_model import RecordedModel
from audit.recorders.model.row_digests import row_digests
from audit.recorders.model.run_numbers import RunNumbers
from audit.recorders.model.step import ModelStep, Place
from audit.recorders.model.tasks.task_grades import make_task_rows
from audit.recorders.model.tasks.task_rows import TaskContext, TaskRows
from audit.recorders.model.ungraded_outputs import describe_label_problem, describe_other_labels, describe_problems
from audit.recorders.model.unpredicted_batch import BatchRows
from audit.recorders.model.waiting_batches import WaitingBatches
from audit.recorders.problems import Problems
from audit.recorders.ranks import rank
from audit.records import Run

#: Where a model returned one tensor alone.
_ONLY_PORT = "output"


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
        plan: CapturePlan,
    ) -> None:
        self._run = run
        self._problems = problems
        self._numbers = numbers
        self._batches = batches
        self._mixes = mixes
        self._tracker = tracker
        self._plan = plan
        self._matcher = BatchMatcher(batches, tracker)
        self._calls = CallRows(run.run_id)
        self._models: list[RecordedModel] = []
        #: Whether the run says that batches have other labels than predictions are graded against.
        self._has_told_of_labels = False
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

    def begin(
        self, watched: RecordedModel, input_tensor: torch.Tensor | None, arguments: list[Any]
    ) -> ModelStep | None:
        """Return the step of a call that is about to be made; None when its samples are not known."""
        phase = "train" if watched.model.training else "eval"
        length = int(input_tensor.size(0)) if input_tensor is not None and input_tensor.dim() else None
        facts: dict[str, Any] = {"model": watched.name, "phase": phase, "rows": length, "rank": rank()}
        facts["other_mode"] = watched.layers_in_other_mode() or None
        try:
            if torch._C._functorch.peek_interpreter_stack() is not None:
                raise UnmatchedCall(
                    "The model was called inside a function transform, such as torch.func.vmap or grad."
                )
            # What is computed from the input is not an operation of the loop.
            with self._tracker.pause_inside():
                match = self._matcher.find(input_tensor, arguments)
        except UnmatchedCall as error:
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
        before = home.step_numbers.get(place)
        return ModelStep(
            run_id=self._run.run_id,
            number=before if before is not None else self._numbers.step,
            epoch=home.epoch,
            batch=home.batches[place],
            phase=phase,
            rank=rank(),
            rows=rows,
            inputs=inputs,
            size=len(match.rows),
            digests=[match.digests[n] for n in inputs] if match.digests is not None else None,
            operations=match.operations,
            parents=[match.parents[n] for n in inputs] if match.parents is not None else [None] * len(inputs),
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
        home, place = step.rows[0]
        if not home.written:
            home.steps.append(step)
            home.step_numbers.setdefault(place, step.number)
        elif not step.follows:
            rows.append(BatchRows(tables={"steps": step.own_row()}))
        rows += self._batches.confirm(step)
        if step.has_mixed_rows:
            rows += self._mixes.take_step_rows(step)
        if not step.follows:
            self._numbers.take_step()
            if self._optimizers is not None:
                self._optimizers.set_step(step)
        return rows

    def read_output(
        self, watched: RecordedModel, step: ModelStep, input_tensor: torch.Tensor | None, output: Any
    ) -> list[BatchRows]:
        """Make predictions of what a call returned. Return those of batches that are written already."""
        if not watched.reader.is_read or is_losses(output):
            return []
        steps = [step]
        if watched.heads:
            steps = self._read_heads(watched, step, input_tensor, output)
        else:
            with self._problems.guard():
                self._read_one(watched, watched.reader, step, input_tensor, output, sample_targets(step))
        with self._problems.guard():
            self._keep_outputs(watched, steps, output)
        self._plan.spend_outputs(sum(part.task.payload_bytes for part in steps if part.task is not None))
        made = [part for part in steps if part.is_read or part.task is not None]
        return [rows for part in made for rows in self._add_predictions(part)]

    def _read_heads(
        self, watched: RecordedModel, step: ModelStep, input_tensor: torch.Tensor | None, output: Any
    ) -> list[ModelStep]:
        """Make the prediction of each head; return the steps of all of them."""
        steps: list[ModelStep] = []
        for number, head in enumerate(watched.heads):
            part = step if number == 0 else step.copy_for_next_head()
            part.head = head.name
            steps.append(part)
            wanted = head_targets(part, head, watched.name)
            if wanted.is_empty and not head.reader.is_embedding:
                self._problems.mark(
                    f"The batch has no target for the output {head.name} of the model {watched.name}: it is recorded and not "
                    "graded. Say where it is with target=: a key, a position or a function of the batch."
                )
            # What is wrong with one head is not wrong with the others.
            with self._problems.guard():
                self._read_one(watched, head.reader, part, input_tensor, output, wanted)
        return steps

    def _keep_outputs(self, watched: RecordedModel, steps: list[ModelStep], output: Any) -> None:
        """Keep all outputs of a call beside its first prediction; where there is none, by themselves."""
        read = next((step for step in steps if step.is_read), None)
        if isinstance(output, torch.Tensor):
            if read is not None:
                return
            output = {_ONLY_PORT: output}
        found = watched.ports.find(output, steps[0].size)
        for problem in found.problems:
            self._problems.mark(f"The output of the model {watched.name}: {problem}", loud=False)
        if len(found.tensors) + len(found.whole) < (1 if read is None else 2):
            return
        home, rows = read or steps[0], TaskRows()
        found.add_to(rows, home.inputs, self._plan.output_level(found.bytes_per_row))
        home.keep_outputs(rows)

    def _read_one(
        self,
        watched: RecordedModel,
        reader: OutputReader,
        step: ModelStep,
        input_tensor: torch.Tensor | None,
        output: Any,
        wanted: GradedTargets,
    ) -> None:
        """Make the prediction of one output of a model."""
        try:
            task = reader.read_task(output, step.size, wanted.items)
        finally:
            self._watch_uses(reader, output)
        if task is not None:
            self._read_task(watched, reader, step, input_tensor, task, wanted)
            return
        given_values = reader.values(output, step.size, wanted.values)
        if watched is self._models[0]:
            # The same weights give other logits in another precision or on another device: a diff names them.
            self._run.recipe.setdefault("output_dtype", str(given_values.dtype).removeprefix("torch."))
            self._run.recipe.setdefault("output_device", given_values.device.type)
        values = given_values[step.inputs].float().cpu().clone()
        meaning, is_new = reader.find_meaning(values, wanted.labels, wanted.values, wanted.classes)
        if is_new:
            self._note_meaning(watched, reader, step, meaning)
        wide = doubt_width(meaning, values.shape[1], wanted.classes) if is_new and not reader.is_declared else None
        digests = step.digests or row_digests(input_tensor, step.rows, step.inputs)
        scale = reader.label_scale(values)
        columns = prediction_columns(values, wanted.labels, wanted.classes, meaning.kind, wanted.values, scale)
        is_doubted = meaning.doubt is not None
        problems = describe_problems(columns, wanted, meaning.kind, is_doubted=is_doubted)
        outside = describe_label_problem(wanted.labels, values.shape[1], meaning.kind)
        others = None
        if not self._has_told_of_labels:
            others = describe_other_labels(columns, wanted, meaning.kind)
            self._has_told_of_labels = others is not None
        for problem in (wide, outside, others, reader.scale.take(is_last=False), *problems):
            if problem is not None:
                self._problems.mark(f"The output of the model {reader.name}: {problem}")
        self._watch_uses(reader, output)
        step.predict(columns, digests)

    def _watch_uses(self, reader: OutputReader, output: Any) -> None:
        """Look at what the loop uses an output for, as long as that may show whether its numbers are logits."""
        uses = self._tracker.uses
        for scale in (reader.scale, reader.scores):
            if scale.is_open:
                uses.watch(output, scale.note_use)
            elif uses.watched:
                uses.forget(scale.note_use)

    def _read_task(
        self,
        watched: RecordedModel,
        reader: OutputReader,
        step: ModelStep,
        input_tensor: torch.Tensor | None,
        output: TaskOutput,
        wanted: GradedTargets,
    ) -> None:
        """Make predictions of boxes, masks or tokens."""
        meaning, is_new = reader.note_task(output.kind)
        if is_new:
            self._note_meaning(watched, reader, step, meaning)
        context = TaskContext(
            inputs=step.inputs,
            targets=[
                None if is_mixed else target for target, is_mixed in zip(wanted.items, step.mixed_rows, strict=True)
            ],
            classes=step.rows[0][0].classes,
            labels=wanted.labels,
            level=self._plan.current_level(),
            spaces=_spaces_of(step) if output.kind == "boxes" else (),
            tokens=input_tensor if output.kind == "tokens" else None,
        )
        task = make_task_rows(output, context)
        for problem in task.problems:
            self._problems.mark(f"The output of the model {reader.name}: {problem}")
        step.predict_task(task, wanted.labels, step.digests or row_digests(input_tensor, step.rows, step.inputs))

    def _add_predictions(self, step: ModelStep) -> list[BatchRows]:
        rows: list[BatchRows] = []
        for batch in {id(batch): batch for batch, _ in step.rows}.values():
            if batch.written:
                # The loop came back to a batch that it had left.
                rows.append(BatchRows(tables=step.tables_of(batch), is_selected=True))
            else:
                batch.predictions.append(step)
        return rows

    def _note_meaning(
        self, watched: RecordedModel, reader: OutputReader, step: ModelStep, meaning: OutputMeaning
    ) -> None:
        """Keep on the run what the graded model's output means, and warn where that is not evident."""
        run = self._run
        is_graded = watched is self._models[0] and reader is watched.first_reader
        if is_graded or run.output is None:
            run.output, run.task, run.output_evidence = meaning.kind, meaning.task, meaning.evidence
        if step.head is not None:
            heads = run.recipe.setdefault("heads", {})
            heads[f"{watched.name}.{step.head}"] = meaning.kind
        if meaning.doubt is not None:
            self._problems.mark(f"The output of the model {reader.name}: {meaning.doubt}")

    def take_rows(self) -> list[BatchRows]:
        """Return the rows of `calls`, if enough have gathered."""
        return self._calls.take_rows()

    def take_rest(self) -> list[BatchRows]:
        """Return the rows of `calls` that are left; mark the run with doubts that no later call can settle."""
        for reader in (one for watched in self._models for one in watched.readers):
            if (doubt := reader.scale.take(is_last=True)) is not None:
                self._problems.mark(f"The output of the model {reader.name}: {doubt}")
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
