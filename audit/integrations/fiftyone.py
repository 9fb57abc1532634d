"""FiftyOne: the samples of a run as a FiftyOneDataset on disk. No package is needed.

    fiftyone.Dataset.from_dir("DIR", dataset_type=fiftyone.types.FiftyOneDataset)

`samples.json` and `metadata.json` are in the form of FiftyOne's serialised datasets without a version, which every
release reads and from which it infers the fields. Pictures are not copied: `filepath` is the recorded file. A sample
whose source is not a file gets its stored preview as a PNG in `data/`; one that has neither is left out, and counted in
`metadata.json`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from audit import plainjson
from audit.integrations import run_facts as facts
from audit.integrations.stage_strips import has_pictures, previews
from audit.records import Run
from audit.store.read.reader import Reader

_FIELDS = ("index", "epoch", "visit", "split", "source", "source_digest", "status", "failed_stage", "error", "correct")
_NUMBERS = ("loss", "margin", "entropy")


def export(reader: Reader, run: Run, folder: Path, samples: list[dict[str, Any]]) -> list[Path]:
    """Write the dataset, one sample for each visit."""
    made: list[Path] = []
    written: list[dict[str, Any]] = []
    left_out = 0
    pictures = has_pictures(reader, run)
    for row in samples:
        path = facts.source_file(row) or (_preview(reader, run, row, folder) if pictures else None)
        if path is None:
            left_out += 1
            continue
        if not os.path.isabs(path):
            made.append(folder / path)
        written.append(_sample(row, path))
    info = {
        "audit": {"run_id": run.run_id, "name": run.name, "store": reader.location, "left_out": left_out},
        **({"classes": run.classes} if run.classes else {}),
    }
    metadata = {"name": run.name or run.run_id, "media_type": "image", "num_samples": len(written), "info": info}
    described = [_write(folder / "metadata.json", metadata), _write(folder / "samples.json", {"samples": written})]
    return facts.WrittenFiles([*made, *described], left_out=left_out)


def _preview(reader: Reader, run: Run, row: dict[str, Any], folder: Path) -> str | None:
    picture = next(previews(reader, run, row), None)
    if picture is None:
        return None
    name = f"data/{row['split'] or 'sample'}-{row['epoch']}-{row['index']}-{row['visit']}.png"
    name = "data/" + "".join(c if c.isalnum() or c in "-_." else "_" for c in name.removeprefix("data/"))
    (folder / "data").mkdir(exist_ok=True)
    picture.save(folder / name)
    return name


def _sample(row: dict[str, Any], path: str) -> dict[str, Any]:
    fields = {name: row[name] for name in _FIELDS if row[name] is not None}
    numbers = {
        name: facts.finite_or_none(row[name]) for name in _NUMBERS if facts.finite_or_none(row[name]) is not None
    }
    labels = dict(_labels(row))
    # What FiftyOne keeps for itself may not be a field of ours: id, filepath, tags, metadata.
    return {
        "filepath": path,
        "tags": [*([row["split"]] if row["split"] else []), *(row["tags"] or [])],
        "metadata": None,
        **labels,
        **fields,
        **numbers,
        **({"logits": row["logits"]} if row["logits"] and all(map(_is_finite, row["logits"])) else {}),
    }


def _labels(row: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if row["label"] is not None:
        yield "ground_truth", _classification(row["label_name"], row["label"], None)
    if row["predicted"] is not None:
        yield "prediction", _classification(row["predicted_name"], row["predicted"], row["confidence"])


def _classification(name: str | None, number: int, confidence: float | None) -> dict[str, Any]:
    found = {"_cls": "Classification", "tags": [], "label": name if name is not None else str(number)}
    return found | ({"confidence": confidence} if confidence is not None else {})


def _is_finite(value: Any) -> bool:
    return facts.finite_or_none(value) is not None


def _write(path: Path, value: Any) -> Path:
    path.write_text(plainjson.dumps(value, indent=1) + "\n", encoding="utf-8")
    return path
