"""TensorBoard: a run's scalars, histograms and pictures as an event file.

    audit export latest --to tensorboard -o tensorboard && tensorboard --logdir tensorboard

Scalars are loss, learning rate and gradient norm of each step, accuracy and loss of each epoch, and what layers did.
Histograms are loss, confidence, margin and entropy of each epoch, and the activations and gradients of each recorded layer
at each step, from their recorded percentiles. Pictures are the worst mistakes, stage by stage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from audit import plainjson
from audit.errors import MissingExtra
from audit.integrations import run_facts as facts
from audit.integrations.stage_strips import mistake_text, worst_strips
from audit.records import Run
from audit.store.read.reader import Reader

MISTAKES = 24


def export(reader: Reader, run: Run, folder: Path) -> list[Path]:
    """Write one event file into a separate folder for the run, so that several runs show side by side."""
    target = folder / run.run_id
    before = set(target.glob("*"))
    with _writer(str(target)) as writer:
        _scalars(writer, reader, run)
        for column, epoch, values in facts.distributions(reader, run):
            _histogram(writer, f"predictions/{column}", values, epoch)
        for tag, step, rows in facts.layer_percentiles(reader, run):
            _layer_histogram(writer, tag, step, rows)
        _pictures(writer, reader, run)
        described = plainjson.dumps(facts.parameters(reader, run) | facts.totals(run), indent=1)
        writer.add_text("run", "\n".join(f"    {line}" for line in described.splitlines()))
    return [path for path in target.glob("*") if path not in before]


def _scalars(writer: Any, reader: Reader, run: Run) -> None:
    for name, value in facts.totals(run).items():
        writer.add_scalar(f"run/{name}", value, 0)
    for step, phase, values in facts.steps(reader, run):
        for name, value in values.items():
            writer.add_scalar(f"{phase}/{name}", value, step)
    for row in facts.epochs(reader, run):
        for name in ("accuracy", "loss", "confidence"):
            if row[name] is not None:
                writer.add_scalar(f"epoch/{row['split']}/{name}", row[name], row["epoch"])
    for row in facts.layers(reader, run):
        for name in ("mean", "std", "zero_fraction", "norm", "nonfinite"):
            if row[name] is not None:
                writer.add_scalar(
                    f"layers/{row['layer']}/{row['direction']}/{row['port']}/{name}", row[name], row["step"]
                )


def _histogram(writer: Any, tag: str, values: list[float], epoch: int) -> None:
    import numpy as np

    writer.add_histogram(tag, np.asarray(values), epoch)


def _layer_histogram(writer: Any, tag: str, step: int, rows: list[facts.Percentiles]) -> None:
    """Write the distribution of one layer at one step: the percentiles of its rows, added up.

    Between two percentiles the elements are taken to be spread evenly, as TensorBoard takes them inside a bucket.
    """
    import numpy as np

    limits = np.unique([limit for row in rows for limit in row.limits])
    below = np.sum([row.elements * np.interp(limits, row.limits, facts.SHARES) for row in rows], axis=0)
    elements = sum(row.elements for row in rows)
    writer.add_histogram_raw(
        tag,
        min=float(limits[0]),
        max=float(limits[-1]),
        num=elements,
        sum=sum(row.elements * row.mean for row in rows),
        sum_squares=sum(row.elements * (row.std**2 + row.mean**2) for row in rows),
        bucket_limits=limits.tolist(),
        bucket_counts=np.diff(below, prepend=0.0).tolist(),
        global_step=step,
    )


def _pictures(writer: Any, reader: Reader, run: Run) -> None:
    import numpy as np

    for number, row, strip in worst_strips(reader, run, MISTAKES):
        tag = f"mistakes/{number:02d} index {row['index']}, {mistake_text(row)}"
        writer.add_image(tag, np.asarray(strip), row["epoch"], dataformats="HWC")


def _writer(folder: str) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtra("tensorboard", "Writing for TensorBoard", extra="tensorboard") from error
    return SummaryWriter(folder)
