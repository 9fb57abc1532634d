"""Runs of a training loop written row by row: every answer is known, so that views can be worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from audit.recorders.model.predictions import prediction_columns
from audit.records import Run
from audit.store.read.reader import Reader
from audit.store.training_views import VIEWS
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter


@dataclass(frozen=True)
class WrittenVisit:
    """One visit."""

    index: int
    label: int
    logits: Sequence[float]
    visit: int = 0


def write_training(
    store: Path, batches: Iterable[tuple[int, str, Sequence[WrittenVisit]]], *, split: str | None = None
) -> str:
    """One run whose steps are these (epoch, phase, visits); the loss of a step is the mean of its visits'."""
    writer = RunWriter.create(str(store), Run(""))
    for step, (epoch, phase, visits) in enumerate(batches):
        count = len(visits)
        columns = prediction_columns(
            torch.tensor([list(v.logits) for v in visits], dtype=torch.float32), [v.label for v in visits], None
        )
        shared = {
            "run_id": [writer.run.run_id] * count,
            "epoch": [epoch] * count,
            "index": [v.index for v in visits],
            "visit": [v.visit for v in visits],
            "batch": [step] * count,
            "position": list(range(count)),
        }
        samples = {
            "source": [f"{v.index:03d}.png" for v in visits],
            "split": [split] * count,
            "label": [v.label for v in visits],
            "status": ["ok"] * count,
        }
        loss = float(np.mean([value for value in columns["loss"] if value is not None]))
        one = {"run_id": writer.run.run_id, "epoch": epoch, "step": step, "batch": step, "phase": phase, "loss": loss}
        writer.append(
            {
                "samples": table_of("samples", shared | samples),
                "predictions": table_of("predictions", columns | shared | {"step": [step] * count}),
                "steps": table_of("steps", {name: [value] for name, value in one.items()}),
            }
        )
    return writer.finish("complete").run_id


def view(store: Path, name: str, where: str = "") -> list[dict[str, Any]]:
    """The rows of a view."""
    return views(store, (name,), where)[0]


def views(store: Path, names: Sequence[str], where: str = "") -> list[list[dict[str, Any]]]:
    """The rows of several views. Their own text is asked, so that it does not matter how the store makes them."""
    with Reader(str(store)) as reader:
        return [reader.sql(f"FROM ({VIEWS[name]}) {where}").dicts() for name in names]
