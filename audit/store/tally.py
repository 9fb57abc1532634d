"""How many samples, failures and right predictions rows hold: counted as they are written, and again by `verify`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: The tables that are counted, and the columns that this takes.
COUNTED_COLUMNS = {"samples": ("epoch", "split", "status"), "predictions": ("epoch", "call", "correct")}


@dataclass(frozen=True, slots=True)
class Tally:
    """What rows add to their run's counts."""

    samples: int = 0
    failed: int = 0
    graded: int = 0
    correct: int = 0
    #: Of each epoch: how many predictions were graded, and how many of them were correct.
    epochs: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    #: Of each epoch: the splits that its samples are of.
    splits: Mapping[int, frozenset[str | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: Mapping[str, pa.Table]) -> Tally:
        """Return the tally of rows that belong together."""
        samples, predictions = tables.get("samples"), tables.get("predictions")
        if predictions is not None:
            # Of several predictions of a visit the first counts, as in the view `graded_predictions`.
            # Only the columns that are counted, since outputs are large.
            # Without a Python number to compare with: pyarrow imports pandas to convert one.
            later = pc.cast(predictions["call"], pa.bool_())
            predictions = predictions.select(COUNTED_COLUMNS["predictions"]).filter(
                pc.or_kleene(pc.is_null(later), pc.invert(later))
            )
        return cls(
            samples.num_rows if samples is not None else 0,
            _counts(samples["status"]).get("failed", 0) if samples is not None else 0,
            predictions.num_rows - predictions["correct"].null_count if predictions is not None else 0,
            (pc.sum(predictions["correct"]).as_py() or 0) if predictions is not None else 0,
            _by_epoch(samples, predictions),
            _splits(samples),
        )

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.samples + other.samples,
            self.failed + other.failed,
            self.graded + other.graded,
            self.correct + other.correct,
            {epoch: _sum(self.epochs, other.epochs, epoch) for epoch in {*self.epochs, *other.epochs}},
            {
                epoch: self.splits.get(epoch, frozenset()) | other.splits.get(epoch, frozenset())
                for epoch in {*self.splits, *other.splits}
            },
        )

    def last_epoch(self, *, ended: bool) -> int | None:
        """Return the last epoch that is complete: the newest of a run that has ended, else the one before it."""
        known = sorted(self.epochs)
        return next(iter(reversed(known if ended else known[:-1])), None)

    def accuracy(self, epoch: int | None) -> float | None:
        """Return the accuracy of one epoch; without one, that of the newest epoch as far as it has come."""
        graded, correct = self.epochs.get(max(self.epochs, default=0) if epoch is None else epoch, (0, 0))
        return correct / graded if graded else None


def _sum(a: Mapping[int, tuple[int, int]], b: Mapping[int, tuple[int, int]], epoch: int) -> tuple[int, int]:
    (graded, correct), (more, right) = a.get(epoch, (0, 0)), b.get(epoch, (0, 0))
    return graded + more, correct + right


def _by_epoch(samples: pa.Table | None, predictions: pa.Table | None) -> dict[int, tuple[int, int]]:
    found = dict.fromkeys(_distinct_epochs(samples), (0, 0))
    if predictions is None:
        return found
    epochs, correct = predictions["epoch"], predictions["correct"]
    graded, right = _counts(epochs.filter(pc.is_valid(correct))), _counts(epochs.filter(correct))
    for epoch in _distinct_epochs(predictions):
        found[epoch] = graded.get(epoch, 0), right.get(epoch, 0)
    return found


def _splits(samples: pa.Table | None) -> dict[int, frozenset[str | None]]:
    if samples is None:
        return {}
    known = samples["split"].unique().to_pylist()
    if len(known) == 1:
        return dict.fromkeys(_distinct_epochs(samples), frozenset(known))
    found: dict[int, frozenset[str | None]] = {}
    for row in samples.select(["epoch", "split"]).group_by(["epoch", "split"]).aggregate([]).to_pylist():
        found[row["epoch"]] = found.get(row["epoch"], frozenset()) | {row["split"]}
    return found


def _counts(values: pa.ChunkedArray) -> dict[Any, int]:
    """Return how often each value occurs."""
    return {row["values"]: row["counts"] for row in pc.value_counts(values).to_pylist()}


def _distinct_epochs(table: pa.Table | None) -> list[int]:
    return [] if table is None else [epoch for epoch in table["epoch"].unique().to_pylist() if epoch is not None]
