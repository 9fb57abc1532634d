"""DVC: a run's numbers as the metrics and plots that `dvc exp show` and `dvc plots` read, and a stage that records again.

`metrics.json` has the numbers, `plots/confusion.csv` the graded predictions of the last epoch, `plots/epochs.csv` the epochs.
`dvc.yaml` is written only if the folder has none: a stage whose command is the recorded one, followed by this export. No package
is needed to write them.
"""

from __future__ import annotations

import csv
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from audit import plainjson
from audit.integrations import run_facts as facts
from audit.records import Run
from audit.store.read.reader import Reader

_EPOCH = ("epoch", "split", "samples", "accuracy", "loss", "confidence")


def export(reader: Reader, run: Run, folder: Path) -> list[Path]:
    """Write metrics and plots, and a stage file if there is none."""
    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    metrics = folder / "metrics.json"
    metrics.write_text(plainjson.dumps(_metrics(reader, run), indent=1) + "\n", encoding="utf-8")
    written = [metrics, _write_csv(plots / "confusion.csv", ("actual", "predicted"), _confusion(reader, run))]
    epochs = ([row[name] for name in _EPOCH] for row in facts.epochs(reader, run))
    written.append(_write_csv(plots / "epochs.csv", _EPOCH, epochs))
    stage = folder / "dvc.yaml"
    if not stage.exists():
        # JSON is YAML, and needs no package.
        stage.write_text(plainjson.dumps(_stage_file(reader, run, folder), indent=2) + "\n", encoding="utf-8")
        written.append(stage)
    return written


def _metrics(reader: Reader, run: Run) -> dict[str, Any]:
    """Return the numbers of the run. DVC compares them from experiment to experiment, so that what always differs is left out."""
    found: dict[str, Any] = {
        name: int(value) if value == int(value) and name != "accuracy" else value
        for name, value in facts.totals(run).items()
        if name != "seconds"
    }
    losses = [row["loss"] for row in facts.epochs(reader, run) if row["epoch"] == run.last_epoch and row["loss"]]
    if losses:
        found["loss"] = sum(losses) / len(losses)
    return found


def _confusion(reader: Reader, run: Run) -> list[tuple[Any, ...]]:
    return reader.sql(
        """
        SELECT coalesce(label_name, label::VARCHAR), coalesce(predicted_name, predicted::VARCHAR)
        FROM graded_predictions WHERE run_id = ? AND epoch = ? ORDER BY index, visit
        """,
        run=run.run_id,
        parameters=[run.run_id, run.last_epoch],
    ).fetchall()


def _write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def _stage_file(reader: Reader, run: Run, folder: Path) -> dict[str, Any]:
    """Return a stage that runs the recorded command from the present directory, and exports its numbers again."""
    here = os.path.relpath(folder)
    store = shlex.quote(_shorten_path(reader.location))
    again = f"audit export latest --to dvc -o {shlex.quote(here)} --store {store}"
    stage = {
        "wdir": os.path.relpath(os.getcwd(), folder),
        "cmd": [_literal(command) for command in (run.command, again) if command],
        "deps": [_literal(_shorten_path(path)) for path in _inputs(run)],
        "metrics": [{os.path.join(here, "metrics.json"): {"cache": False}}],
        "plots": [
            {os.path.join(here, "plots", "confusion.csv"): {**_CONFUSION, "cache": False}},
            {os.path.join(here, "plots", "epochs.csv"): {"x": "epoch", "y": "accuracy", "cache": False}},
        ],
    }
    return {"stages": {"audit": {name: value for name, value in stage.items() if value}}}


_CONFUSION = {"x": "actual", "y": "predicted", "template": "confusion"}


def _inputs(run: Run) -> list[str]:
    """Return the files and folders that the recorded command read, where they are local and exist."""
    named = (run.recipe.get(name) for name in ("dataset", "model", "pipeline"))
    paths = [str(value).partition(".py:")[0] + (".py" if ".py:" in str(value) else "") for value in named if value]
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]


def _shorten_path(path: str) -> str:
    """Return a path below the present directory in relation to it, and any other as it is."""
    if "://" in path:
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _literal(text: str) -> str:
    """Return text that DVC does not take for a template."""
    return text.replace("${", "\\${")
