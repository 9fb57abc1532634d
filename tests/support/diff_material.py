"""What the tests of diff are made of: small pictures, pipelines that differ in one planted fault, synthetic runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from audit.engines.local import record_locally
from audit.engines.request import RunRequest
from audit.records import Run
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter

HEAD = """
mode = "keep"
import os
import torch
from PIL import Image, ImageOps
from torchvision import transforms
from torchvision.transforms import v2

def to_rgb(image):
    return image.convert("RGB")

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
"""
#: The baseline, stage by stage; a fault replaces, drops, adds or moves some of them.
STAGES = {
    "rgb": "to_rgb",
    "image": "v2.ToImage()",
    "resize": "v2.Resize(24, antialias=True)",
    "crop": "v2.CenterCrop(20)",
    "dtype": "v2.ToDtype(torch.float32, scale=True)",
    "normalize": "v2.Normalize(MEAN, STD)",
}
PICTURES = 8
ROTATED_SAMPLE = 2


def pipeline_text(changes: dict[str, str | None] | None = None, extra: str = "", order: Sequence[str] = ()) -> str:
    """The baseline with some stages replaced; None drops one, and a name with + goes in after that stage."""
    changes = changes or {}
    stages: list[str] = []
    for name in order or STAGES:
        if (text := changes.get(name, STAGES[name])) is not None:
            stages.append(text)
        if added := changes.get(f"{name}+"):
            stages.append(added)
    return f"{HEAD}\n{extra}\ntransform = v2.Compose([{', '.join(stages)}])\n"


def write_pictures(root: Path) -> Path:
    """Noise in two classes, of which some lie on their side and say so in their EXIF."""
    for number in range(PICTURES):
        folder = root / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (32, 40, 3), dtype=np.uint8)
        picture = Image.fromarray(noise)
        if number < ROTATED_SAMPLE:
            exif = Image.Exif()
            exif[0x0112] = 6
            picture.save(folder / f"{number}.jpg", quality=95, exif=exif)
        else:
            picture.save(folder / f"{number}.png")
    return root


class Recorder:
    """Records into one store, each pipeline in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = str(folder / "store")
        self._count = 0

    def __call__(self, dataset: Path, text: str, **options: Any) -> Run:
        self._count += 1
        path = self.folder / f"{self.folder.name.replace('-', '_')}_{self._count}.py"
        path.write_text(text)
        return self.file(dataset, path, **options)

    def file(self, dataset: Path, pipeline: Path, **options: Any) -> Run:
        """Record through a pipeline file that is there."""
        options = {"workers": 0, "capture": "full", **options}
        return record_locally(RunRequest(dataset=str(dataset), pipeline=str(pipeline), store=self.store, **options))


def make_digest(*words: object) -> str:
    """A digest of anything."""
    return hashlib.md5(repr(words).encode()).hexdigest()


def write_run(store: str, rows: Sequence[dict[str, Any]], stages: Sequence[dict[str, Any]], **run: Any) -> str:
    """A synthetic run. A row has source, content, label, predicted (or None) and outputs (stage → digest)."""
    phase = run.pop("phase", None)
    writer = RunWriter.create(store, Run("", **run))
    run_id = writer.run.run_id
    writer.append({"stages": table_of("stages", _columns([{"run_id": run_id, "random": False, **s} for s in stages]))})
    samples, outputs, predictions = [], [], []
    classes = run.get("classes")
    for number, row in enumerate(rows):
        key = {"run_id": run_id, "epoch": row.get("epoch", 0), "index": number, "visit": 0}
        label = row.get("label")
        name = classes[label] if classes and label is not None else None
        facts = {"source": row["source"], "label": label, "label_name": name, "status": row.get("status", "ok")}
        failure = {"failed_stage": row.get("failed_stage"), "error": row.get("error")}
        samples.append(key | facts | failure | {"source_digest": row.get("content")})
        done = row.get("outputs", {})
        outputs += [key | {"stage": s, "name": "x", "digest": d, "changed": True} for s, d in done.items()]
        if row.get("predicted") is not None:
            predicted = row["predicted"]
            reported = {"predicted": predicted, "predicted_name": classes[predicted] if classes else None}
            reported["confidence"] = row.get("confidence")
            right = None if label is None else label == predicted
            last = done[max(done)] if done else None
            predictions.append(
                key | reported | {"label": label, "label_name": name, "correct": right, "input_digest": last}
            )
    tables = {"samples": samples, "stage_outputs": outputs, "predictions": predictions}
    if phase:
        tables["steps"] = [{"run_id": run_id, "epoch": 0, "step": 0, "phase": phase}]
    writer.append({name: table_of(name, _columns(found)) for name, found in tables.items() if found})
    writer.finish("complete")
    return run_id


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
