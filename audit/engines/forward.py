"""Runs the model on a batch, and writes the rows of the batch and of its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from audit import values
from audit.engines.batch_calls import SampleCalls
from audit.engines.declared_heads import DeclaredHead
from audit.engines.model_output import BatchOutput, ModelOutput, UnreadOutput
from audit.errors import AuditError, ModelError, UnclearOutput
from audit.metrics.source_space import SourceSpace, spaces_by_visit
from audit.models import LoadedModel
from audit.models.task_outputs import TaskOutput, join_outputs
from audit.recorders.capture import output_level
from audit.recorders.envelope import RecordedBatch
from audit.recorders.model.graded_targets import GradedTargets, grade_against
from audit.recorders.model.output_reader import OutputReader
from audit.recorders.model.ports import OutputPorts
from audit.recorders.model.predictions import prediction_columns
from audit.recorders.model.recorded_model import layers_in_other_mode
from audit.recorders.model.step import TASK_KEY, task_tables
from audit.recorders.model.tasks.task_grades import make_task_rows
from audit.recorders.model.tasks.task_rows import TaskContext, TaskRows
from audit.recorders.visit.stage_register import StageOrdinals
from audit.records import MODEL_STAGE, Level
from audit.store import wire
from audit.store.write.block import BlockWriter
from audit.store.write.payload_filter import Selection
from audit.store.write.writer import RunWriter

#: The key of the one pipeline of a run.
ONLY_PIPELINE = 0
#: The number of outputs that are stored without a prediction: 0 is that of the graded one.
_UNGRADED_CALLS = 1


class Forward:
    """Runs one model on recorded batches."""

    @property
    def model_name(self) -> str:
        """The architecture, else the name of the class."""
        return self._model.arch or type(self._model.module).__name__

    def __init__(
        self,
        model: LoadedModel,
        named: str | None,
        device: str,
        output: str | None = None,
        classes: list[str] | None = None,
        heads: Sequence[DeclaredHead] = (),
        share: float | None = None,
    ) -> None:
        name, module = model.arch or type(model.module).__name__, model.module
        #: The readers of all graded outputs by name: one without a name, unless several are declared.
        self.readers: dict[str | None, OutputReader] = {
            head.name: OutputReader(module, f"{name}.{head.name}", head.kind, head.key) for head in heads
        } or {None: OutputReader(module, name, output or model.output, None)}
        self._is_declared = bool(heads or output or model.output)
        self._ports = OutputPorts(module)
        #: Each visit's share of the capture budget; None where the budget does not count.
        self._share = share
        self._model = model
        self._named = named
        self._device = device
        self._classes = classes
        self.calls = SampleCalls(self._call)
        self._modules = [(name, module) for name, module in model.module.named_modules() if name]
        #: The mode of the model at its last call, and the layers that were in the other one.
        self.modes: tuple[str, list[str]] = ("eval", [])

    @property
    def reader(self) -> OutputReader:
        """The reader of the output that counts for the run."""
        return next(iter(self.readers.values()))

    def __call__(self, fetched: RecordedBatch, level: Level = "digest") -> BatchOutput:
        """Return what the model gives for the batch's samples that did not fail; those that it cannot take fail here."""
        calls = self.calls.make(fetched)
        if not calls:
            return BatchOutput()
        made, errors = BatchOutput(), dict[str | None, UnclearOutput]()
        wanted = {head: self._read_graded_targets(fetched, head) for head in self.readers}
        parts: dict[str | None, list[torch.Tensor | TaskOutput]] = {head: [] for head in self.readers}
        for first, count, output in calls:
            for head, reader in self.readers.items():
                try:
                    parts[head].append(_read(reader, output, first, count, wanted[head]))
                except UnclearOutput as error:
                    errors.setdefault(head, error)
            self._add_ports(made.ports, output, first, count, level, least=1 if len(errors) == len(parts) else 2)
        for call, head in enumerate(self.readers):
            try:
                if head in errors:
                    raise errors[head]
                made.graded.append(self._output(fetched, head, parts[head], wanted[head], level, call))
            except UnclearOutput as error:
                is_stored = made.ports.has_samples and not self._is_declared
                made.unread.append(UnreadOutput(head, fetched.of_ok(fetched.indices), error, is_stored))
        return made

    def _add_ports(self, ports: TaskRows, output: Any, first: int, count: int, level: Level, *, least: int) -> None:
        """Keep all outputs of a call, if there are so many."""
        found = self._ports.find(output, count)
        for problem in found.problems:
            ports.mark(problem)
        if len(found.tensors) + len(found.whole) >= least:
            found.add_to(ports, range(count), output_level(level, found.bytes_per_row, self._share), first)

    def _output(
        self,
        fetched: RecordedBatch,
        head: str | None,
        parts: list[torch.Tensor | TaskOutput],
        wanted: GradedTargets,
        level: str,
        call: int,
    ) -> ModelOutput:
        """Return one graded output; raise UnclearOutput where its parts do not fit each other or their targets."""
        reader = self.readers[head]
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        tasks = [part for part in parts if not isinstance(part, torch.Tensor)]
        if tasks and tensors:
            raise UnclearOutput(
                f"The model {reader.name} returned {tasks[0].kind} for some samples of a batch, and numbers for others.",
                hint="Say what the output is with output= (--output).",
            )
        if tasks:
            rows = self._task_rows(fetched, reader, join_outputs(tasks), wanted, level)
            return ModelOutput(reader, wanted, task=rows, head=head, call=call)
        values = torch.cat(tensors)
        meaning, _ = reader.find_meaning(values, wanted.labels, wanted.values, wanted.classes)
        scale = reader.label_scale(values)
        columns = prediction_columns(values, wanted.labels, wanted.classes, meaning.kind, wanted.values, scale)
        return ModelOutput(reader, wanted, values, columns, head=head, call=call)

    def _read_graded_targets(self, fetched: RecordedBatch, head: str | None) -> GradedTargets:
        """Return what an output is graded against: the target of its name, else the label or target of each sample."""
        labels = fetched.of_ok(fetched.labels)
        if head is None:
            items = fetched.of_ok(fetched.item_targets) if fetched.item_targets else [None] * len(fetched.ok)
            return GradedTargets(labels, _stack_targets(items), items, self._classes)
        found = [targets.get(head) for targets in fetched.of_ok(fetched.item_head_targets)]
        tensors = [torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in found]
        return grade_against(tensors, labels, self._classes)

    def _task_rows(
        self, fetched: RecordedBatch, reader: OutputReader, output: TaskOutput, wanted: GradedTargets, level: str
    ) -> TaskRows:
        reader.note_task(output.kind)
        inputs = fetched.data
        context = TaskContext(
            inputs=range(len(fetched.ok)),
            targets=wanted.items,
            classes=self._classes,
            labels=wanted.labels,
            level=level,
            spaces=_spaces_of(fetched) if output.kind == "boxes" else (),
            tokens=inputs if output.kind == "tokens" and isinstance(inputs, torch.Tensor) else None,
        )
        return make_task_rows(output, context)

    def _call(self, inputs: Any) -> Any:
        moved = inputs.to(self._device, non_blocking=True) if isinstance(inputs, torch.Tensor) else inputs
        module = self._model.module
        mode = "train" if getattr(module, "training", False) else "eval"
        self.modes = mode, layers_in_other_mode(module, self._modules)
        try:
            return self._model.module(moved)
        except AuditError:
            raise
        except Exception as error:
            shape = tuple(inputs.shape) if isinstance(inputs, torch.Tensor) else type(inputs).__name__
            raise ModelError(
                f"The model {self._named} could not be run on a batch of {shape}: "
                f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
                hint="Check that the pipeline makes what this model expects."
                if isinstance(inputs, torch.Tensor)
                else "Its last stage should return a tensor: add ToTensor, or ToImage and ToDtype.",
            ) from error


def _read(
    reader: OutputReader, output: Any, first: int, count: int, wanted: GradedTargets
) -> torch.Tensor | TaskOutput:
    """Return what one reader finds in the output for `count` samples, of which `first` is the place of the first."""
    task = reader.read_task(output, count, wanted.items[first : first + count])
    return task if task is not None else reader.values(output, count, wanted.values).float().cpu()


def _stack_targets(wanted: list[Any]) -> torch.Tensor | None:
    """Return targets that are numbers as one tensor; None unless every sample has one, of the same shape."""
    if not wanted or not all(isinstance(one, np.ndarray) for one in wanted) or len({one.shape for one in wanted}) > 1:
        return None
    return torch.from_numpy(np.stack(wanted))


def _spaces_of(fetched: RecordedBatch) -> list[SourceSpace | None]:
    """Return where each sample's input lies in its source; None where that is not known."""
    spaces = spaces_by_visit(fetched.unstamped_rows().get("stage_outputs"), fetched.own_stages)
    return [spaces.get((index, 0)) for index in fetched.of_ok(fetched.indices)]


class RowAppender:
    """Writes a batch and its predictions as rows of the store, in the same way in every process."""

    def __init__(
        self,
        run_id: str,
        selection: Selection | None,
        stages: StageOrdinals,
        forward: Forward | None = None,
    ) -> None:
        self.model = forward.model_name if forward is not None else None
        self._forward = forward
        self._run_id = run_id
        self._stages = stages
        self._selection = selection

    def append_to(
        self,
        writer: RunWriter | BlockWriter,
        fetched: RecordedBatch,
        number: int,
        output: BatchOutput | None,
        digests: list[str | None],
    ) -> None:
        """Hand all rows of batch `number` to a writer; `output` is None where no model was run."""
        ordinals = self._stages.ordinals(ONLY_PIPELINE, fetched.stages)
        stamp = wire.BatchStamp(self._run_id, epoch=0, batch=number, visits=[0] * fetched.count, stages=ordinals)
        tables: dict[str, Any] = {}
        if (stages := self._stages.take_rows()) is not None:
            tables["stages"] = stages
        if output is not None and fetched.ok:
            made = [self._predictions(fetched, number, one, digests) for one in output.graded]
            tables |= {
                name: wire.join_tables([one[name] for one in made if name in one]) for one in made for name in one
            }
            keys = self._keys(fetched, output.graded[0].call if made else _UNGRADED_CALLS)
            numbered = {place: key | {"number": number} for place, key in keys.items()}
            whole = {"run_id": self._run_id, "epoch": 0, "model": self.model, "number": number}
            tables |= task_tables(output.ports, numbered, whole)
            tables["calls"] = self._call(fetched, number)
        stamped = fetched.stamp_rows(stamp)
        if self._selection is None and not fetched.failed_at_model:
            writer.append(tables, stamped, fetched.row_bytes)
            return
        found = stamped.tables() | tables
        if fetched.failed_at_model:
            found["samples"] = wire.fail_samples(found["samples"], MODEL_STAGE, fetched.failed_at_model)
        writer.append(found if self._selection is None else self._selection.apply(found))

    def _call(self, fetched: RecordedBatch, number: int) -> Any:
        """Return the row of `calls`: one for each batch."""
        phase, odd = self._forward.modes if self._forward is not None else ("eval", [])
        facts: dict[str, Any] = {
            "run_id": self._run_id,
            "number": number,
            "model": self.model,
            "epoch": 0,
            "step": number,
            "phase": phase,
            "other_mode": odd or None,
            "rows": len(fetched.ok),
            "samples": len(fetched.ok),
            "evidence": "batch",
        }
        return wire.table_of("calls", {name: [value] for name, value in facts.items()})

    def _predictions(
        self, fetched: RecordedBatch, number: int, output: ModelOutput, digests: list[str | None]
    ) -> dict[str, Any]:
        """Return the rows of one graded output."""
        count, wanted = len(fetched.ok), output.wanted
        made = output.columns if output.task is None else {"label": wanted.labels, **output.task.columns}
        columns: dict[str, Any] = made | {
            "run_id": [self._run_id] * count,
            "epoch": [0] * count,
            "index": fetched.of_ok(fetched.indices),
            "visit": [0] * count,
            "input_digest": digests,
            "batch": [number] * count,
            "position": fetched.ok,
            "step": [number] * count,
            "model": [self.model] * count,
            "call": [output.call] * count,
            "number": [number] * count,
            "head": [output.head] * count,
        }
        found = {"predictions": wire.table_of("predictions", columns)}
        if output.task is not None:
            found |= task_tables(output.task, self._keys(fetched, output.call))
        return found

    def _keys(self, fetched: RecordedBatch, call: int) -> dict[int, dict[str, Any]]:
        """Return the key of each sample's rows in the tables of single tasks."""
        found = enumerate(fetched.of_ok(fetched.indices))
        keys = {place: (self._run_id, 0, index, 0, self.model, call) for place, index in found}
        return {place: dict(zip(TASK_KEY, key, strict=True)) for place, key in keys.items()}


def input_digests(fetched: RecordedBatch) -> list[str | None]:
    """Return the digest of what the model was given, sample by sample: taken from the batch, so that a mix-up shows."""
    inputs = fetched.data
    if isinstance(inputs, torch.Tensor) and len(inputs) == len(fetched.ok):
        if fetched.last_kind == "tensor" and (at_once := values.row_digests(inputs)) is not None:
            return list(at_once)
        return [values.digest(values.as_form(value, fetched.last_kind)) for value in inputs]
    if isinstance(inputs, (torch.Tensor, list, tuple)) and len(inputs) == len(fetched.ok):
        return [values.digest(value) for value in inputs]
    return [values.digest(inputs)] * len(fetched.ok)
