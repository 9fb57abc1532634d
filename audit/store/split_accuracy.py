"""The accuracy of the split that models are evaluated on, for an epoch with samples of several splits.

A prediction does not say its split, and may be written later than its sample: the rows of the epoch are read again.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from audit.records import Part
from audit.split_names import evaluation_splits
from audit.store.commits import run_folder
from audit.store.filesystem import Filesystem
from audit.store.schema import SCHEMAS, add_missing_columns
from audit.store.tally import Tally

_KEY = ["index", "visit"]


class EvaluationAccuracy:
    """The accuracy of the evaluation split of a run's last epoch, while its rows are written."""

    def __init__(self, filesystem: Filesystem, run_id: str, parts: Iterable[Part], tally: Tally) -> None:
        self._filesystem, self._run_id = filesystem, run_id
        self._parts: dict[int, list[Part]] = {}
        #: The answer for one epoch, until more of its rows are written.
        self._known: tuple[int, tuple[float, str] | None] | None = None
        self.add(parts, tally)

    def add(self, parts: Iterable[Part], tally: Tally) -> None:
        """Take note of parts that were written, and of what their rows add to the counts."""
        listed = [part for part in parts if part.table in ("samples", "predictions")]
        for epoch in tally.epochs:
            self._parts.setdefault(epoch, []).extend(listed)
            if self._known is not None and self._known[0] == epoch:
                self._known = None

    def find(self, epoch: int | None, splits: Collection[str | None]) -> tuple[float, str] | None:
        """Return the accuracy and the name of the split; None where the epoch is judged as a whole."""
        if epoch is None or not is_judged_by_one(splits):
            return None
        if self._known is None or self._known[0] != epoch:
            self._parts = {later: parts for later, parts in self._parts.items() if later >= epoch}
            parts = self._parts.get(epoch, [])
            self._known = epoch, evaluation_accuracy(self._filesystem, self._run_id, parts, epoch)
        return self._known[1]


def is_judged_by_one(splits: Collection[str | None]) -> bool:
    """Return whether one of the splits of an epoch stands for all: there are several, and models are evaluated on one."""
    return len(splits) > 1 and bool(evaluation_splits(splits))


def evaluation_accuracy(
    filesystem: Filesystem, run_id: str, parts: Iterable[Part], epoch: int
) -> tuple[float, str] | None:
    """Return the accuracy of an epoch's evaluation split, and its name; None if none of its samples was graded."""
    listed = list(parts)
    samples = _rows_of(filesystem, run_id, listed, "samples", epoch, ["split"])
    predictions = _rows_of(filesystem, run_id, listed, "predictions", epoch, ["correct", "call"])
    # Of several predictions of a visit the first counts, as in the view `graded_predictions`.
    first = predictions.filter(pc.equal(pc.fill_null(predictions["call"], 0), 0)).select([*_KEY, "correct"])
    for split in evaluation_splits(samples["split"].unique().to_pylist()):
        chosen = samples.filter(pc.equal(samples["split"], split)).select(_KEY)
        correct = first.join(chosen, _KEY, join_type="left semi")["correct"].drop_null()
        if len(correct):
            return (pc.sum(correct).as_py() or 0) / len(correct), split
    return None


def read_splits(filesystem: Filesystem, run_id: str, parts: Iterable[Part]) -> frozenset[str | None]:
    """Return the splits that the samples of the parts are of."""
    return frozenset(_read(filesystem, run_id, parts, "samples", ["split"])["split"].unique().to_pylist())


def _rows_of(
    filesystem: Filesystem, run_id: str, parts: Iterable[Part], table: str, epoch: int, columns: list[str]
) -> pa.Table:
    """Return the rows of one epoch, with their keys and the columns that are asked for."""
    rows = _read(filesystem, run_id, parts, table, ["epoch", *_KEY, *columns])
    return rows.filter(pc.equal(rows["epoch"], epoch))


def _read(filesystem: Filesystem, run_id: str, parts: Iterable[Part], table: str, wanted: list[str]) -> pa.Table:
    found = [SCHEMAS[table].empty_table().select(wanted)]
    for part in parts:
        if part.table == table:
            file = pq.ParquetFile(io.BytesIO(filesystem.read(f"{run_folder(run_id)}/{part.file}")))
            rows = file.read(columns=[name for name in wanted if name in file.schema_arrow.names], use_threads=False)
            found.append(add_missing_columns(table, rows).select(wanted))
    return pa.concat_tables(found)
