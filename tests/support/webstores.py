"""Stores that the web tests share: one really recorded, the others written row by row where a real one would take long.

Every function takes a place and gives the id of the run it wrote there.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from warm_programs import warm_python

from audit.records import Run
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter

ROOT = Path(__file__).resolve().parents[2]


def record_digits(place: Path, *runs: dict[str, Any]) -> None:
    """The digits through their model, really recorded: one process, because loading torch takes longest."""
    code = "import json, sys, audit\nfor options in json.loads(sys.argv[1]): audit.run(**options)"
    common = {
        "dataset": "fixtures/digits/test",
        "model": "fixtures/digits.pt",
        "pipeline": "pipelines/digits.py",
        "store": str(place),
        "limit": 120,
        "workers": 0,
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [warm_python(), "-c", code, json.dumps([{**common, **run} for run in runs])]
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=600)


def jpeg(seed: int = 0, side: int = 16) -> bytes:
    """A small picture."""
    out = io.BytesIO()
    level = np.random.default_rng(seed).integers(0, 255, (side, side, 3), np.uint8)
    Image.fromarray(level).save(out, "JPEG")
    return out.getvalue()


def begin(place: Path, name: str, **facts: Any) -> RunWriter:
    """A run of the given facts, begun."""
    return RunWriter.create(str(place), Run("", name=name, **facts))


def rows(table: str, many: list[dict[str, Any]]) -> Any:
    """Rows as a table of the store."""
    names = {name for row in many for name in row}
    return table_of(table, {name: [row.get(name) for row in many] for name in names})


def visit(run: str, index: int, epoch: int = 0) -> dict[str, Any]:
    """The key of a visit."""
    return {"run_id": run, "epoch": epoch, "index": index, "visit": 0}


def write_samples(
    writer: RunWriter, samples: list[dict[str, Any]], *, stages: tuple[str, ...] = ("load", "ToTensor")
) -> None:
    """Samples with their stages and predictions.

    A sample may say: index, epoch, visit, split, source, root, digest, label, label_name, predicted, error, text, preview, loss,
    step, probabilities.
    """
    run = writer.run.run_id
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("samples", "stage_outputs", "payloads", "predictions")
    }
    for index, sample in enumerate(samples):
        key = visit(run, sample.get("index", index), sample.get("epoch", 0)) | {"visit": sample.get("visit", 0)}
        tables["samples"].append(key | _sample_row(index, sample, stages))
        if sample.get("error"):
            continue
        for stage, name in enumerate(stages):
            tables["stage_outputs"].append(key | _output_row(index, sample, stage, name))
            if sample.get("preview", b"") is not None:
                tables["payloads"].append(key | _payload_row(index, sample, stage))
        if "predicted" in sample:
            tables["predictions"].append(key | _prediction_row(index, sample))
    described = [
        {"run_id": run, "stage": n, "path": str(n), "name": name, "qualname": name} for n, name in enumerate(stages)
    ]
    if not any(part.table == "stages" for part in writer._manifest.parts):
        writer.append({"stages": rows("stages", described)})
    writer.append({name: rows(name, many) for name, many in tables.items() if many})


def _sample_row(index: int, sample: dict[str, Any], stages: tuple[str, ...]) -> dict[str, Any]:
    failed = sample.get("error")
    return {
        "split": sample.get("split"),
        "source": sample.get("source", f"{index}.png"),
        "root": sample.get("root", "/nowhere"),
        "source_digest": sample.get("digest", "0" * 64),
        "label": sample.get("label"),
        "label_name": sample.get("label_name"),
        "status": "failed" if failed else "ok",
        "failed_stage": sample.get("failed_stage", stages[0]) if failed else None,
        "error": failed,
        "batch": sample.get("step", index // 8),
    }


def _output_row(index: int, sample: dict[str, Any], stage: int, name: str) -> dict[str, Any]:
    return {
        "stage": stage,
        "name": name,
        "kind": "text" if "text" in sample else "image",
        "dtype": "uint8",
        "shape": [16, 16],
        "digest": f"{index:016x}{stage:016x}",
        "changed": True,
        "min": 0.0,
        "max": 255.0,
        "mean": 100.0,
        "std": 9.0,
        "microseconds": 100.0,
        "payload": "preview",
        "params": sample.get("params"),
    }


def _payload_row(index: int, sample: dict[str, Any], stage: int) -> dict[str, Any]:
    row = {"stage": stage, "form": "preview"}
    if "text" in sample:
        return row | {"kind": "text", "encoding": "text/plain", "data": sample["text"].encode()}
    return row | {"kind": "image", "encoding": "image/jpeg", "data": sample.get("preview", jpeg(index))}


def _prediction_row(index: int, sample: dict[str, Any]) -> dict[str, Any]:
    right = sample["predicted"] == sample["label"]
    return {
        "label": sample["label"],
        "label_name": sample.get("label_name"),
        "predicted": sample["predicted"],
        "predicted_name": sample.get("predicted_name"),
        "confidence": sample.get("confidence", 0.8),
        "correct": right,
        "loss": sample.get("loss", 0.2 if right else 2.0),
        "logits": [1.0, 2.0],
        "probabilities": sample.get("probabilities", [0.2, 0.8]),
        "batch": sample.get("step", index // 8),
        "step": sample.get("step", index // 8),
    }


def record_training(place: Path, *, samples: int = 60, epochs: int = 6) -> str:
    """A run whose model learns most samples, forgets some and never learns a few; one step has a spike."""
    rng = np.random.default_rng(7)
    writer = begin(place, "training", classes=["cat", "dog"], dataset="synthetic", arch="tiny")
    easy = rng.random(samples)
    written = []
    for epoch in range(epochs):
        for index in range(samples):
            skill = (epoch + 1) / epochs
            sure = float(np.clip(skill * (0.3 + easy[index]) + rng.normal(0, 0.12), 0.02, 0.99))
            step = epoch * (samples // 10) + index // 10
            loss = 12.0 + rng.random() if step == 2 * (samples // 10) + 3 else -float(np.log(sure))
            label = index % 2
            written.append(
                {
                    "index": index,
                    "epoch": epoch,
                    "label": label,
                    "label_name": ["cat", "dog"][label],
                    "source": f"{index}.png",
                    "predicted": label if sure > 0.5 else 1 - label,
                    "predicted_name": "x",
                    "confidence": max(sure, 1 - sure),
                    "loss": loss,
                    "probabilities": [sure, 1 - sure] if label == 0 else [1 - sure, sure],
                    "step": step,
                    "split": "train",
                    "preview": jpeg(index),
                }
            )
    write_samples(writer, written)
    run = writer.run.run_id
    steps = []
    for step in range(epochs * samples // 10):
        losses: list[Any] = [row["loss"] for row in written if row["step"] == step]
        key = {"run_id": run, "epoch": step // (samples // 10), "step": step, "batch": step, "phase": "train"}
        steps.append(key | {"loss": float(np.mean(losses)), "samples": len(losses)})
    found = [
        {"run_id": run, "check_name": name, "severity": "error", "status": status, "message": status}
        for name, status in (("blank", "pass"), ("dead_layers", "skip"), ("hooks", "fail"))
    ]
    writer.append(
        {
            "activations": rows("activations", _layer_rows(run, epochs * samples // 10, samples // 10)),
            "steps": rows("steps", steps),
            "findings": rows("findings", found),
        }
    )
    return writer.finish("complete").run_id


def _layer_rows(run: str, steps: int, steps_per_epoch: int) -> list[dict[str, Any]]:
    return [
        {
            "run_id": run,
            "epoch": step // steps_per_epoch,
            "step": step,
            "layer": layer,
            "layer_type": "Conv2d",
            "direction": "forward",
            "port": "output.0",
            "mean": scale * np.sin(step / 9),
            "std": scale * (1 + step / 40),
            "zero_fraction": min(0.9, 0.2 + step / 90),
            "nonfinite": 0,
        }
        for step in range(steps)
        for layer, scale in (("conv1", 1.0), ("layer4", 0.6), ("fc", 0.3))
    ]
