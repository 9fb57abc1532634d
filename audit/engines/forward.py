"""A batch through the model, and the rows that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from audit import values
from audit.engines.declared_heads import DeclaredHead
from audit.errors import AuditError, ModelError
from audit.metrics.source_space import SourceSpace, spaces_by_visit
from audit.models import LoadedModel
from audit.models.task_outputs import TaskOutput, join_outputs
from audit.recorders.envelope import RecordedBatch
from audit.recorders.model.graded_targets import GradedTargets, grade_against
from audit.recorders.model.output_reader import OutputReader
from audit.recorders.model.ports import OutputPorts
from audit.recorders.model.predictions import describe_label_problem, prediction_columns
from audit.recorders.model.recorded_model import layers_in_other_mode
from audit.recorders.model.step import TASK_KEY, task_tables
from audit.recorders.model.task_rows import TaskContext, TaskRows, make_task_rows
from audit.recorders.visit.stage_register import StageOrdinals
from audit.store import wire as rows
from audit.store.write.payload_filter import Selection

#: The key of the one pipeline of a run.
ONLY_PIPELINE = 0


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """One graded output for the samples of a batch that did not fail: numbers (N, C), or rows of another task."""

    reader: OutputReader
    #: What it is graded against.
    wanted: GradedTargets
    values: torch.Tensor | None = None
    task: TaskRows | None = None
    #: Its name, where several outputs are graded.
    head: str | None = None

    @property
    def kind(self) -> str:
        """What its numbers mean."""
        return self.reader.meaning.kind if self.reader.meaning is not None else "logits"

    @property
    def problems(self) -> list[str]:
        """Sentences on what could not be graded."""
        found = list(self.task.problems) if self.task is not None else []
        if self.head is None:
            return found  # labels that no output stands for are counted
        if self.values is not None and (
            problem := describe_label_problem(self.wanted.labels, self.values.shape[1], self.kind)
        ):
            found.append(problem)
        if self.wanted.is_empty and not self.reader.is_embedding:
            found.append("no item has a target for it: it is recorded and not graded. Say where it is with --target.")
        return [f"{self.head}: {problem}" for problem in found]


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
    ) -> None:
        name, module = model.arch or type(model.module).__name__, model.module
        #: The readers of all graded outputs by name: one without a name, unless several are declared.
        self.readers: dict[str | None, OutputReader] = {
            head.name: OutputReader(module, f"{name}.{head.name}", head.kind, head.key) for head in heads
        } or {None: OutputReader(module, name, output or model.output, None)}
        self._ports = OutputPorts()
        self._model = model
        self._named = named
        self._device = device
        self._classes = classes
        self._modules = [(name, module) for name, module in model.module.named_modules() if name]
        #: The mode of the model at its last call, and the layers that were in the other one.
        self.modes: tuple[str, list[str]] = ("eval", [])

    @property
    def reader(self) -> OutputReader:
        """The reader of the output that counts for the run."""
        return next(iter(self.readers.values()))

    def __call__(self, fetched: RecordedBatch, level: str = "digest") -> list[ModelOutput]:
        """Return what the model gives for the batch's samples that did not fail: each graded output."""
        inputs, ports = fetched.data, TaskRows()
        wanted = {head: self._wanted(fetched, head) for head in self.readers}
        parts: dict[str | None, list[torch.Tensor | TaskOutput]] = {head: [] for head in self.readers}
        if isinstance(inputs, list) and all(isinstance(value, torch.Tensor) for value in inputs):
            # Samples of different shapes cannot share a batch: each goes alone.
            given = [(place, 1, value[None]) for place, value in enumerate(inputs)]
        else:
            given = [(0, len(fetched.ok), inputs)]
        for first, count, value in given:
            output = self._call(value)
            for head, reader in self.readers.items():
                task = reader.read_task(output, count, wanted[head].items[first : first + count])
                targets = wanted[head].values
                parts[head].append(task if task is not None else reader.values(output, count, targets).float().cpu())
            found = self._ports.find(output, count)
            if len(found.tensors) > 1:
                found.add_to(ports, range(count), first)
        made = [self._output(fetched, head, parts[head], wanted[head], level) for head in self.readers]
        first_task = made[0].task
        assert first_task is not None
        first_task.tables |= ports.tables
        return made

    def _wanted(self, fetched: RecordedBatch, head: str | None) -> GradedTargets:
        """Return what an output is graded against: the target of its name, else the label or target of each sample."""
        labels = fetched.of_ok(fetched.labels)
        if head is None:
            items = fetched.of_ok(fetched.item_targets) if fetched.item_targets else [None] * len(fetched.ok)
            return GradedTargets(labels, _stacked(items), items, self._classes)
        found = [targets.get(head) for targets in fetched.of_ok(fetched.item_head_targets)]
        tensors = [torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in found]
        return grade_against(tensors, labels, self._classes)

    def _output(
        self,
        fetched: RecordedBatch,
        head: str | None,
        parts: list[torch.Tensor | TaskOutput],
        wanted: GradedTargets,
        level: str,
    ) -> ModelOutput:
        reader = self.readers[head]
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        if not tensors:
            task = join_outputs([part for part in parts if not isinstance(part, torch.Tensor)])
            rows = self._task_rows(fetched, reader, task, wanted, level)
            return ModelOutput(reader, wanted, task=rows, head=head)
        values = torch.cat(tensors)
        reader.find_meaning(values, wanted.labels, wanted.values)
        return ModelOutput(reader, wanted, values, TaskRows(), head)

    def _task_rows(
        self, fetched: RecordedBatch, reader: OutputReader, output: TaskOutput, wanted: GradedTargets, level: str
    ) -> TaskRows:
        reader.note_task(output.kind)
        inputs = fetched.data
        context = TaskContext(
            inputs=range(len(fetched.ok)),
            targets=wanted.items,
            classes=self._classes,
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


def _stacked(wanted: list[Any]) -> torch.Tensor | None:
    """Return targets that are numbers as one tensor; None unless every sample has one, of the same shape."""
    if not wanted or not all(isinstance(one, np.ndarray) for one in wanted) or len({one.shape for one in wanted}) > 1:
        return None
    return torch.from_numpy(np.stack(wanted))


def _spaces_of(fetched: RecordedBatch) -> list[SourceSpace | None]:
    """Return where each sample's input lies in its source; None where that is not known."""
    spaces = spaces_by_visit(fetched.rows().get("stage_outputs"), fetched.own_stages)
    return [spaces.get((index, 0)) for index in fetched.of_ok(fetched.indices)]


class Rows:
    """A batch and its logits as rows of the store, the same whichever process makes them."""

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

    def tables(
        self, fetched: RecordedBatch, number: int, outputs: list[ModelOutput], digests: list[str | None]
    ) -> dict[str, Any]:
        """Return all rows of batch `number`; `outputs` is empty where no model was run."""
        unpacked = fetched.rows()
        ordinals = self._stages.ordinals(ONLY_PIPELINE, fetched.stages)
        stamp = rows.Stamp(self._run_id, epoch=0, batch=number, visits=[0] * fetched.count, stages=ordinals)
        tables = stamp.apply(unpacked)
        if (stages := self._stages.take_rows()) is not None:
            tables["stages"] = stages
        if outputs:
            made = [self._predictions(fetched, number, call, output, digests) for call, output in enumerate(outputs)]
            tables |= {name: rows.joined([one[name] for one in made if name in one]) for one in made for name in one}
            tables["calls"] = self._call(fetched, number)
        return self._selection.apply(tables) if self._selection else tables

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
        return rows.table_of("calls", {name: [value] for name, value in facts.items()})

    def _predictions(
        self, fetched: RecordedBatch, number: int, call: int, output: ModelOutput, digests: list[str | None]
    ) -> dict[str, Any]:
        """Return the rows of one graded output: prediction number `call` of each visit."""
        count, wanted = len(fetched.ok), output.wanted
        columns: dict[str, Any] = {"label": wanted.labels}
        if output.values is not None:
            columns = prediction_columns(output.values, wanted.labels, wanted.classes, output.kind, wanted.values)
        elif output.task is not None:
            columns |= output.task.columns
        columns |= {
            "run_id": [self._run_id] * count,
            "epoch": [0] * count,
            "index": fetched.of_ok(fetched.indices),
            "visit": [0] * count,
            "input_digest": digests,
            "batch": [number] * count,
            "position": fetched.ok,
            "step": [number] * count,
            "model": [self.model] * count,
            "call": [call] * count,
            "number": [number] * count,
            "head": [output.head] * count,
        }
        found = {"predictions": rows.table_of("predictions", columns)}
        if output.task is not None:
            keys = {place: {name: columns[name][place] for name in TASK_KEY} for place in range(count)}
            found |= task_tables(output.task, keys)
        return found


def input_digests(fetched: RecordedBatch) -> list[str | None]:
    """Return the digest of what the model was given, sample by sample: taken from the batch, so that a mix-up shows."""
    inputs = fetched.data
    if isinstance(inputs, torch.Tensor) and len(inputs) == len(fetched.ok):
        return [values.digest(values.as_form(value, fetched.last_kind)) for value in inputs]
    if isinstance(inputs, (torch.Tensor, list, tuple)) and len(inputs) == len(fetched.ok):
        return [values.digest(value) for value in inputs]
    return [values.digest(inputs)] * len(fetched.ok)


def labels_outside(output: ModelOutput) -> int:
    """Count the labels that no value of the output stands for."""
    meaning = output.reader.meaning
    if output.values is None or (meaning is not None and meaning.task != "classification"):
        return 0
    width = max(int(output.values.shape[1]), 2)
    return sum(label is not None and not 0 <= label < width for label in output.wanted.labels)
