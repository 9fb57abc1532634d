"""A small recorded run made by hand, so that a fault can be planted in exactly one row of it.

No torch: rows go through the real writer into a real store, and the checks read them back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from audit.records import Run
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter

SAMPLES = 60
CLASSES = ["bird", "cat", "dog"]
STAGES = ("load", "Resize", "ToTensor", "Normalize")
LAST = len(STAGES) - 1
Row = dict[str, Any]


@dataclass
class World:
    """The rows of one run, table by table; change them, then `write`."""

    run: Run
    tables: dict[str, list[Row]] = field(default_factory=dict)

    def sample(self, index: int) -> Row:
        """The row of one sample."""
        return next(row for row in self.tables["samples"] if row["index"] == index)

    def output(self, index: int, stage: int) -> Row:
        """The row of one stage output."""
        return next(row for row in self.tables["stage_outputs"] if row["index"] == index and row["stage"] == stage)

    def outputs(self, stage: int) -> list[Row]:
        """Every output of one stage."""
        return [row for row in self.tables["stage_outputs"] if row["stage"] == stage]

    def prediction(self, index: int) -> Row:
        """The row of one prediction."""
        return next(row for row in self.tables["predictions"] if row["index"] == index)

    def stage(self, number: int) -> Row:
        """The row of one stage."""
        return self.tables["stages"][number]

    def fail(self, index: int, stage: str, error: str) -> None:
        """Let one sample fail: no later outputs, no prediction."""
        self.sample(index).update(status="failed", failed_stage=stage, error=error)
        self.tables["predictions"] = [row for row in self.tables["predictions"] if row["index"] != index]
        self.tables["stage_outputs"] = [row for row in self.tables["stage_outputs"] if row["index"] != index]

    def write(self, place: Path, status: str = "complete") -> Path:
        """The store that holds it."""
        writer = RunWriter.create(str(place), self.run)
        tables = {}
        for name, rows in self.tables.items():
            if rows:
                columns = sorted({key for row in rows for key in row})
                data = {key: [row.get(key) for row in rows] for key in columns}
                tables[name] = table_of(name, data | {"run_id": [writer.run.run_id] * len(rows)})
        writer.append(tables)
        writer.finish(status)  # type: ignore[arg-type]
        return place


def grade(row: Row, label: int, logits: list[float]) -> None:
    """Fill in all that follows from logits and label."""
    values = np.array(logits, dtype=np.float64)
    powers = np.exp(values - values.max())
    probabilities = powers / powers.sum()
    predicted = int(values.argmax())
    row.update(
        label=label,
        label_name=CLASSES[label] if 0 <= label < len(CLASSES) else None,
        predicted=predicted,
        predicted_name=CLASSES[predicted] if predicted < len(CLASSES) else None,
        confidence=float(probabilities[predicted]),
        correct=predicted == label,
        loss=float(-np.log(probabilities[label])) if label < len(logits) else None,
        logits=[float(value) for value in logits],
        probabilities=probabilities.tolist(),
    )


def digest(*parts: object, size: int = 32) -> str:
    """A digest that is the same in every run."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:size]


def world(samples: int = SAMPLES, *, root: str = "/nowhere", name: str | None = None, seed: int = 0) -> World:
    """A clean run: coloured pictures, four stages, a model that is right nine times out of ten and knows it."""
    rng = np.random.default_rng(seed)
    run = Run("", name=name, classes=list(CLASSES), expected=samples, unrecorded=[])
    made = World(run, {"stages": _stages(), "samples": [], "stage_outputs": [], "predictions": [], "activations": []})
    for index in range(samples):
        label = index % len(CLASSES)
        key: Row = {"epoch": 0, "index": index, "visit": 0}
        made.tables["samples"].append(
            key
            | {
                "split": "test", "source": f"{CLASSES[label]}/{index:03d}.png", "root": root, "status": "ok",
                "source_digest": digest("file", index, size=64), "source_bytes": 1_000 + index, "label": label,
                "label_name": CLASSES[label], "worker": index % 2, "batch": index // 8, "position": index % 8,
            }
        )  # fmt: skip
        made.tables["stage_outputs"] += [key | _output(rng, index, stage) for stage in range(len(STAGES))]
        prediction = key | {"batch": index // 8, "position": index % 8, "step": index // 8}
        prediction["input_digest"] = digest("output", index, LAST)
        logits = rng.normal(0, 0.3, len(CLASSES))
        right = index % 10 != 9
        logits[label if right else (label + 1) % len(CLASSES)] += 2.2 if right else 0.8
        grade(prediction, label, logits.tolist())
        made.tables["predictions"].append(prediction)
    return made


def _stages() -> list[Row]:
    parameters: list[dict[str, Any]] = [{}, {"size": [32]}, {}, {"mean": [0.5], "std": [0.25]}]
    return [
        {
            "stage": number, "path": str(number), "name": name, "qualname": f"transforms.{name}",
            "parameters": json.dumps(parameters[number]), "random": False, "source_code_digest": digest("code", name),
        }
        for number, name in enumerate(STAGES)
    ]  # fmt: skip


def _output(rng: np.random.Generator, index: int, stage: int) -> Row:
    picture = stage < 2
    low, high = ((0.0, 255.0), (0.0, 255.0), (0.0, 1.0), (-2.0, 2.0))[stage]
    shape = ([48, 64, 3], [32, 42, 3], [3, 32, 42], [3, 32, 42])[stage]
    return {
        "stage": stage, "name": STAGES[stage], "kind": "image" if picture else "tensor",
        "dtype": "uint8" if picture else "float32", "shape": shape, "mode": "RGB" if picture else None,
        "digest": digest("output", index, stage), "changed": True, "min": low, "max": high,
        "mean": low + (high - low) * float(rng.uniform(0.35, 0.65)), "std": (high - low) / 5, "zeros": 3,
        "nonfinite": 0, "bytes": int(np.prod(shape)), "microseconds": 10.0, "payload": "none",
    }  # fmt: skip


Edit = Callable[[World], None]
