"""A batch through the model, and the rows that come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from audit import values
from audit.errors import AuditError, ModelError
from audit.metrics.source_space import SourceSpace, spaces_by_visit
from audit.models import LoadedModel
from audit.models.task_outputs import TaskOutput, join_outputs
from audit.recorders.envelope import RecordedBatch
from audit.recorders.model.output_reader import OutputReader
from audit.recorders.model.ports import add_ports
from audit.recorders.model.predictions import prediction_columns
from audit.recorders.model.recorded_model import layers_in_other_mode
from audit.recorders.model.step import TASK_KEY, task_tables
from audit.recorders.model.task_rows import TaskContext, TaskRows, make_task_rows
from audit.recorders.visit.stage_register import StageRegister, StagesByPath
from audit.store import wire as rows
from audit.store.write.payload_filter import Selection

#: The key of the one pipeline of a run.
ONLY_PIPELINE = 0


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What a model gave for the samples of a batch that did not fail: numbers (N, C), or rows of another task."""

    values: torch.Tensor | None = None
    task: TaskRows | None = None
    #: Targets (N, …) that are numbers, where every sample has one.
    targets: torch.Tensor | None = None


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
    ) -> None:
        self.reader = OutputReader(
            model.module, model.arch or type(model.module).__name__, output or model.output, None
        )
        self._model = model
        self._named = named
        self._device = device
        self._classes = classes
        self._ports = TaskRows()
        self._modules = [(name, module) for name, module in model.module.named_modules() if name]
        #: The mode of the model at its last call, and the layers that were in the other one.
        self.modes: tuple[str, list[str]] = ("eval", [])

    def __call__(self, fetched: RecordedBatch, level: str = "digest") -> ModelOutput:
        """Return what the model gives for the batch's samples that did not fail."""
        inputs = fetched.data
        self._ports = TaskRows()
        wanted = fetched.of_ok(fetched.item_targets) if fetched.item_targets else [None] * len(fetched.ok)
        if isinstance(inputs, list) and all(isinstance(value, torch.Tensor) for value in inputs):
            # Samples of different shapes cannot share a batch: each goes alone.
            parts = [self._call(value[None], wanted[place : place + 1], place) for place, value in enumerate(inputs)]
        else:
            parts = [self._call(inputs, wanted)]
        tensors = [part for part in parts if isinstance(part, torch.Tensor)]
        if not tensors:
            task = join_outputs([part for part in parts if not isinstance(part, torch.Tensor)])
            rows = self._task_rows(fetched, task, wanted, level)
            rows.tables |= self._ports.tables
            return ModelOutput(task=rows)
        values = torch.cat(tensors)
        targets = _stacked(wanted)
        self.reader.find_meaning(values, fetched.of_ok(fetched.labels), targets)
        return ModelOutput(values, self._ports, targets)

    def _task_rows(self, fetched: RecordedBatch, output: TaskOutput, wanted: list[Any], level: str) -> TaskRows:
        self.reader.note_task(output.kind)
        inputs = fetched.data
        context = TaskContext(
            inputs=range(len(fetched.ok)),
            targets=wanted,
            classes=self._classes,
            level=level,
            spaces=_spaces_of(fetched) if output.kind == "boxes" else (),
            tokens=inputs if output.kind == "tokens" and isinstance(inputs, torch.Tensor) else None,
        )
        return make_task_rows(output, context)

    @property
    def kind(self) -> str:
        """What the numbers mean."""
        return self.reader.meaning.kind if self.reader.meaning is not None else "logits"

    def _call(self, inputs: Any, wanted: list[Any], first: int = 0) -> torch.Tensor | TaskOutput:
        moved = inputs.to(self._device, non_blocking=True) if isinstance(inputs, torch.Tensor) else inputs
        module = self._model.module
        mode = "train" if getattr(module, "training", False) else "eval"
        self.modes = mode, layers_in_other_mode(module, self._modules)
        try:
            output = self._model.module(moved)
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
        task = self.reader.read_task(output, len(wanted), wanted)
        add_ports(self._ports, output, range(len(wanted)), len(wanted), first)
        return task if task is not None else self.reader.values(output, len(wanted)).float().cpu()


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
        classes: list[str] | None,
        selection: Selection | None,
        stages: StageRegister | StagesByPath,
        forward: Forward | None = None,
    ) -> None:
        self.model = forward.model_name if forward is not None else None
        self._forward = forward
        self._run_id = run_id
        self._stages = stages
        self._classes = classes
        self._selection = selection

    def tables(
        self, fetched: RecordedBatch, number: int, output: ModelOutput | None, digests: list[str | None]
    ) -> dict[str, Any]:
        """Return all rows of batch `number`."""
        unpacked = fetched.rows()
        ordinals = self._stages.ordinals(ONLY_PIPELINE, fetched.stages)
        stamp = rows.Stamp(self._run_id, epoch=0, batch=number, visits=[0] * fetched.count, stages=ordinals)
        tables = stamp.apply(unpacked)
        if (stages := self._stages.take_rows()) is not None:
            tables["stages"] = stages
        if output is not None:
            tables |= self._predictions(fetched, number, output, digests)
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
        self, fetched: RecordedBatch, number: int, output: ModelOutput, digests: list[str | None]
    ) -> dict[str, Any]:
        count = len(fetched.ok)
        kind = self._forward.kind if self._forward is not None else "logits"
        labels = fetched.of_ok(fetched.labels)
        columns: dict[str, Any] = {"label": labels}
        if output.values is not None:
            columns = prediction_columns(output.values, labels, self._classes, kind, output.targets)
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
            "call": [0] * count,
            "number": [number] * count,
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


def labels_outside(fetched: RecordedBatch, logits: torch.Tensor | None, forward: Forward) -> int:
    """Count the labels that no output of the model stands for."""
    if logits is None:
        return 0
    if forward.reader.meaning is not None and forward.reader.meaning.task != "classification":
        return 0
    width = max(int(logits.shape[1]), 2)
    return sum(label is not None and not 0 <= label < width for label in fetched.of_ok(fetched.labels))
