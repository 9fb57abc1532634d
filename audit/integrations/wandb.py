"""Weights & Biases: a run as a folder of JSON that a few lines of `wandb` log, offline or not. No package is needed.

    config.json               parameters
    summary.json              totals of the run
    history.jsonl             one object for each step and each epoch: {"step", "phase/loss", …} and {"epoch", …}
    tables/predictions.json   {"columns": […], "data": [[…]]}, as wandb.Table takes them; the last epoch of each split
    tables/confusion.json     the same for the confusion counts
    media/mistakes/*.png      the worst mistakes, stage by stage, with media/mistakes.json saying which is which

The binary file that wandb's own offline mode writes is its internal form, and is not written here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from audit import plainjson
from audit.integrations import facts
from audit.integrations.strips import film_strip, has_pictures
from audit.records import Run
from audit.store.reader import Reader

MISTAKES = 50
_COLUMNS = (
    *("epoch", "index", "visit", "split", "source", "label", "label_name", "predicted", "predicted_name"),
    *("confidence", "correct", "loss", "margin", "entropy", "status", "error"),
)


def export(reader: Reader, run: Run, folder: Path) -> list[Path]:
    """Write the folder."""
    for name in ("tables", "media/mistakes"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    links = {"audit.run_id": run.run_id, "audit.store": reader.location, "audit.run_name": run.name}
    written = [
        _json(folder / "config.json", {**facts.parameters(reader, run), **links, "tags": run.tags}),
        _json(folder / "summary.json", {**facts.totals(run), "status": run.status}),
        _history(folder / "history.jsonl", reader, run),
        _table(folder / "tables" / "predictions.json", _COLUMNS, facts.last_epoch_samples(reader, run)),
    ]
    confusion = reader.sql("FROM confusion", run=run.run_id).dicts()
    columns = ("epoch", "label", "label_name", "predicted", "predicted_name", "count")
    written.append(_table(folder / "tables" / "confusion.json", columns, confusion))
    return written + _media(folder / "media", reader, run)


def _json(path: Path, value: Any) -> Path:
    path.write_text(plainjson.dumps(value, indent=1) + "\n", encoding="utf-8")
    return path


def _table(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> Path:
    return _json(path, {"columns": list(columns), "data": [[row[name] for name in columns] for row in rows]})


def _history(path: Path, reader: Reader, run: Run) -> Path:
    with path.open("w", encoding="utf-8") as out:
        for step, phase, values in facts.steps(reader, run):
            out.write(plainjson.dumps({"step": step, **{f"{phase}/{k}": v for k, v in values.items()}}) + "\n")
        for row in facts.epochs(reader, run):
            named = {f"{row['split']}/{name}": row[name] for name in ("accuracy", "loss", "confidence", "samples")}
            out.write(plainjson.dumps({"epoch": row["epoch"], **named}) + "\n")
    return path


def _media(folder: Path, reader: Reader, run: Run) -> list[Path]:
    written: list[Path] = []
    listed = []
    rows = facts.mistakes(reader, run, MISTAKES) if has_pictures(reader, run) else []
    for number, row in enumerate(rows):
        strip = film_strip(reader, run, row)
        if strip is None:
            continue
        path = folder / "mistakes" / f"{number:03d}.png"
        strip.save(path)
        written.append(path)
        listed.append({"file": f"mistakes/{path.name}", **{name: row[name] for name in _COLUMNS}})
    return [*written, _json(folder / "mistakes.json", listed)]
