"""Weights & Biases: a run as an offline run of `wandb`, which `wandb sync` sends where the user wants it.

    audit export latest --to wandb -o DIR && wandb sync DIR/wandb/offline-run-*

History is loss, learning rate and gradient norm of each step, then accuracy and loss of each epoch. Tables are the predictions of the
last epoch of each split, the 10,000 of the highest loss, and the confusion counts. Pictures are the worst mistakes, stage by stage. Nothing leaves the machine here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from audit import plainjson
from audit.errors import MissingExtra
from audit.integrations import run_facts as facts
from audit.integrations.stage_strips import mistake_text, worst_strips
from audit.records import Run
from audit.store.read.reader import Reader

PROJECT = "audit"
MISTAKES = 50
ROWS = 10_000
_PREDICTIONS = (
    *("epoch", "index", "visit", "split", "source", "label", "label_name", "predicted", "predicted_name"),
    *("confidence", "correct", "loss", "margin", "entropy", "status", "error"),
)
_CONFUSION = ("epoch", "label", "label_name", "predicted", "predicted_name", "count")


def export(reader: Reader, run: Run, folder: Path) -> list[Path]:
    """Write the offline run below `folder`/wandb."""
    try:
        import wandb
    except ImportError:
        raise MissingExtra("wandb", "audit export --to wandb", "wandb") from None
    links = {"audit.run_id": run.run_id, "audit.store": reader.location, "audit.run_name": run.name}
    config = {**facts.parameters(reader, run), **links, "tags": run.tags}
    with _run_offline(wandb, run, plainjson.as_plain_json(config), folder) as made:
        _history(made, reader, run)
        predictions = _table(wandb, _PREDICTIONS, _choose_worst(reader, run))
        confusion = _table(wandb, _CONFUSION, reader.sql("FROM confusion", run=run.run_id).dicts())
        made.log({"predictions": predictions, "confusion": confusion})
        if pictures := _pictures(wandb, reader, run):
            made.log({"mistakes": pictures})
        made.summary.update(plainjson.as_plain_json({**facts.totals(run), "status": run.status}))
    return [path for path in Path(made.dir).parent.rglob("*") if path.is_file()]


@contextmanager
def _run_offline(wandb: Any, run: Run, config: dict[str, Any], folder: Path) -> Iterator[Any]:
    # The package reports its crashes to its vendor, even offline; audit disables that.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    # The run is the recorded one's: what of this machine and this process wandb would add is of the export.
    settings = wandb.Settings(
        mode="offline",
        silent=True,
        console="off",
        save_code=False,
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,
        x_disable_meta=True,
        x_save_requirements=False,  # the packages of this process are not those of the run
        x_disable_machine_info=True,
    )
    made = wandb.init(
        project=PROJECT,
        dir=str(folder.resolve()),
        id=run.run_id,
        name=run.name or run.run_id,
        config=config,
        settings=settings,
        reinit="create_new",
    )
    try:
        yield made
    finally:
        made.finish()
        # `finish` returns before wandb's own process has written the file; the end of that process waits for it. A
        # program that has a run of its own keeps the process, and the file is written a moment later.
        if wandb.run is None:
            wandb.teardown()


def _history(made: Any, reader: Reader, run: Run) -> None:
    defined: set[str] = set()

    def log(over: str, at: int, values: dict[str, float | None]) -> None:
        known = {name: value for name, value in values.items() if value is not None}
        for name in known.keys() - defined:
            made.define_metric(name, step_metric=over)
        defined.update(known)
        made.log({over: at, **known})

    for step, phase, values in facts.steps(reader, run):
        log("step", step, {f"{phase}/{name}": value for name, value in values.items()})
    for row in facts.epochs(reader, run):
        names = ("accuracy", "loss", "confidence", "samples")
        log("epoch", row["epoch"], {f"epoch/{row['split']}/{name}": row[name] for name in names})


def _choose_worst(reader: Reader, run: Run) -> list[dict[str, Any]]:
    """Return as many samples as wandb shows in one table."""
    rows = facts.last_epoch_samples(reader, run)
    return sorted(rows, key=lambda row: -(facts.finite_or_none(row["loss"]) or 0.0))[:ROWS]


def _table(wandb: Any, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> Any:
    # A column may hold nothing but None, or names beside numbers.
    return wandb.Table(
        columns=list(columns),
        data=[[plainjson.as_plain_json(row[name]) for name in columns] for row in rows],
        allow_mixed_types=True,
    )


def _pictures(wandb: Any, reader: Reader, run: Run) -> list[Any]:
    found = worst_strips(reader, run, MISTAKES)
    return [wandb.Image(strip, caption=f"{row['source']}: {mistake_text(row)}") for _, row, strip in found]
