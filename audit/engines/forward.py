"""A batch through the model, and the rows that come of it."""

from __future__ import annotations

from typing import Any

import torch

from audit import values
from audit.errors import AuditError, ModelError
from audit.models import LoadedModel
from audit.recorders.envelope import RecordedBatch
from audit.recorders.model.output_reader import OutputReader
from audit.recorders.model.predictions import prediction_columns
from audit.recorders.visit.stage_register import StageRegister, StagesByPath
from audit.store import wire as rows
from audit.store.write.payload_filter import Selection

#: The key of the one pipeline of a run.
ONLY_PIPELINE = 0


class Forward:
    """Runs one model on recorded batches."""

    @property
    def model_name(self) -> str:
        """The architecture, else the name of the class."""
        return self._model.arch or type(self._model.module).__name__

    def __init__(self, model: LoadedModel, named: str | None, device: str, output: str | None = None) -> None:
        self.reader = OutputReader(model.module, model.arch or type(model.module).__name__, output, None)
        self._model = model
        self._named = named
        self._device = device

    def __call__(self, fetched: RecordedBatch) -> torch.Tensor:
        """Return the logits (N, C) of the batch's samples that did not fail."""
        inputs = fetched.data
        if isinstance(inputs, list) and all(isinstance(value, torch.Tensor) for value in inputs):
            # Samples of different shapes cannot share a batch: each goes alone.
            values = torch.cat([self._call(value[None], 1) for value in inputs])
        else:
            values = self._call(inputs, len(fetched.ok))
        self.reader.find_meaning(values, fetched.of_ok(fetched.labels), None)
        return values

    @property
    def kind(self) -> str:
        """What the numbers mean."""
        return self.reader.meaning.kind if self.reader.meaning is not None else "logits"

    def _call(self, inputs: Any, count: int) -> torch.Tensor:
        moved = inputs.to(self._device, non_blocking=True) if isinstance(inputs, torch.Tensor) else inputs
        try:
            output = self._model.module(moved)
        except AuditError:
            raise
        except Exception as error:
            shape = tuple(inputs.shape) if isinstance(inputs, torch.Tensor) else type(inputs).__name__
            raise ModelError(
                f"The model {self._named} could not be run on a batch of {shape}: "
                f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
                hint="Check that the pipeline makes what this model expects.",
            ) from error
        return self.reader.values(output, count).float().cpu()


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
        self, fetched: RecordedBatch, number: int, logits: torch.Tensor | None, digests: list[str | None]
    ) -> dict[str, Any]:
        """Return all rows of batch `number`."""
        unpacked = rows.unpack(fetched.records.numpy())
        ordinals = self._stages.ordinals(ONLY_PIPELINE, fetched.stages)
        stamp = rows.Stamp(self._run_id, epoch=0, batch=number, visits=[0] * fetched.count, stages=ordinals)
        tables = stamp.apply(unpacked)
        if (stages := self._stages.take_rows()) is not None:
            tables["stages"] = stages
        if logits is not None:
            tables["predictions"] = self._predictions(fetched, number, logits, digests)
            tables["calls"] = self._call(fetched, number)
        return self._selection.apply(tables) if self._selection else tables

    def _call(self, fetched: RecordedBatch, number: int) -> Any:
        """Return the row of `calls`: one for each batch."""
        facts: dict[str, Any] = {
            "run_id": self._run_id,
            "number": number,
            "model": self.model,
            "epoch": 0,
            "step": number,
            "phase": "eval",
            "rows": len(fetched.ok),
            "samples": len(fetched.ok),
            "evidence": "batch",
        }
        return rows.table_of("calls", {name: [value] for name, value in facts.items()})

    def _predictions(self, fetched: RecordedBatch, number: int, logits: torch.Tensor, digests: list[str | None]) -> Any:
        count = len(fetched.ok)
        kind = self._forward.kind if self._forward is not None else "logits"
        columns = prediction_columns(logits, fetched.of_ok(fetched.labels), self._classes, kind)
        return rows.table_of(
            "predictions",
            columns
            | {
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
            },
        )


def input_digests(fetched: RecordedBatch) -> list[str | None]:
    """Return the digest of what the model was given, sample by sample: taken from the batch, so that a mix-up shows."""
    inputs = fetched.data
    if isinstance(inputs, torch.Tensor) and len(inputs) == len(fetched.ok):
        return [values.digest(values.as_form(value, fetched.last_kind)) for value in inputs]
    if isinstance(inputs, (torch.Tensor, list, tuple)) and len(inputs) == len(fetched.ok):
        return [values.digest(value) for value in inputs]
    return [values.digest(inputs)] * len(fetched.ok)


def labels_outside(fetched: RecordedBatch, logits: torch.Tensor, forward: Forward) -> int:
    """Count the labels that no output of the model stands for."""
    if forward.reader.meaning is not None and forward.reader.meaning.task != "classification":
        return 0
    width = max(int(logits.shape[1]), 2)
    return sum(label is not None and not 0 <= label < width for label in fetched.of_ok(fetched.labels))
