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
        failed = sample.get("error")
        tables["samples"].append(
            {
                **key,
                "split": sample.get("split"),
                "source": sample.get("source", f"{index}.png"),
                "root": sample.get("root", "/nowhere"),
                "source_digest": sample.get("digest", "0" * 64),
                "label": sample.get("label"),
                "label_name": sample.get("label_name"),
                "status": "failed" if failed else "ok",
                "failed_stage": sample.get("failed_stage", stages[0]) if failed else None,
                "error": failed,
                "batch": index // 8 if "step" not in sample else sample["step"],
            }
        )
        if failed:
            continue
        kind = "text" if "text" in sample else "image"
        for stage, name in enumerate(stages):
            tables["stage_outputs"].append(
                {
                    **key,
                    "stage": stage,
                    "name": name,
                    "kind": kind,
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
            )
            encoding, data = (
                ("text/plain", sample["text"].encode())
                if kind == "text"
                else ("image/jpeg", sample.get("preview", jpeg(index)))
            )
            if sample.get("preview", b"") is not None:
                tables["payloads"].append(
                    {
                        **key,
                        "stage": stage,
                        "form": "preview",
                        "kind": kind,
                        "encoding": encoding,
                        "data": data,
                    }
                )
        if "predicted" in sample:
            right = sample["predicted"] == sample["label"]
            tables["predictions"].append(
                {
                    **key,
                    "label": sample["label"],
                    "label_name": sample.get("label_name"),
                    "predicted": sample["predicted"],
                    "predicted_name": sample.get("predicted_name"),
                    "confidence": sample.get("confidence", 0.8),
                    "correct": right,
                    "loss": sample.get("loss", 0.2 if right else 2.0),
                    "logits": [1.0, 2.0],
                    "probabilities": sample.get("probabilities", [0.2, 0.8]),
                    "batch": index // 8 if "step" not in sample else sample["step"],
                    "step": sample.get("step", index // 8),
                }
            )
    described = [
        {"run_id": run, "stage": n, "path": str(n), "name": name, "qualname": name} for n, name in enumerate(stages)
    ]
    if not any(part.table == "stages" for part in writer._manifest.parts):
        writer.append({"stages": rows("stages", described)})
    writer.append({name: rows(name, many) for name, many in tables.items() if many})


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
    layers = []
    for step in range(epochs * samples // 10):
        for layer, scale in (("conv1", 1.0), ("layer4", 0.6), ("fc", 0.3)):
            layers.append(
                {
                    "run_id": writer.run.run_id,
                    "epoch": step // (samples // 10),
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
            )
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
            "activations": rows("activations", layers),
            "steps": rows("steps", steps),
            "findings": rows("findings", found),
        }
    )
    return writer.finish("complete").run_id
