"""The samples that a condition picks, a block at a time.

The rows are those of `lineage`. Where a run's predictions are known to hold the same (`completeness`), a query tries them
alone first, which spares a join of millions. A block begins after the last sample of the block before it, not at an
offset: the thousandth costs what the first did. The condition is a user's SQL, so what is built here must run in
`store.sandbox`; nothing here runs it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from audit.columns import columns_of
from audit.errors import UsageError
from audit.lineage.queries.browsing import Key, VisitPlace
from audit.records import Run
from audit.store.read.reader import Reader
from audit.store.sql_literal import literal
from audit.store.views import PREDICTED_COLUMNS
from audit.tables import PredictionRow, SampleRow

#: What a block can be sorted by: the expression, and whether the largest come first.
ORDERS: dict[str, tuple[str, bool]] = {
    "loss": ("loss", True),
    "-loss": ("loss", False),
    "confidence": ("confidence", True),
    "-confidence": ("confidence", False),
    "margin": ("margin", False),
    "entropy": ("entropy", True),
    "index": ("index", False),
}
_SHOWN_COLUMNS = "epoch, index, visit, label, predicted, confidence, correct, loss"
_NAMES = "label_name, predicted_name"


#: Whether predictions hold the rows of `lineage`: all of them, all but the failed ones, or not for sure.
Completeness = Literal["all", "all but failed", "unknown"]
_PREDICTED_COLUMNS = ", ".join(f"p.{name}" for name in PREDICTED_COLUMNS)
_SHARED_COLUMNS = tuple(name for name in columns_of(PredictionRow) if name in columns_of(SampleRow))


@dataclass(frozen=True, slots=True)
class PickedSamples:
    """The samples of a run that meet an SQL condition over the columns of `lineage`."""

    run: Run
    condition: str
    completeness: Completeness

    @property
    def rows(self) -> tuple[str, ...]:
        """The samples as the end of a query (FROM … WHERE …), in several forms to be tried in order; all give the same rows."""
        run = f"run_id = {literal(self.run.run_id)}"
        tables: tuple[str, ...] = ("lineage",)
        if self.completeness != "unknown":
            failed = f" FROM samples WHERE {run} AND status = 'failed'"
            predicted = f"SELECT * EXCLUDE (call, number), 'ok' AS status FROM graded_predictions WHERE {run}"
            # Of two sides that hold the same rows DuckDB may put the smaller one into memory; of `lineage` it must not.
            joined = (
                f"SELECT s.* EXCLUDE (source_raw), {_PREDICTED_COLUMNS} FROM (FROM samples WHERE {run} AND status = 'ok') s "
                f"JOIN (FROM graded_predictions WHERE {run}) p USING (epoch, index, visit)"
            )
            if self.completeness == "all but failed":
                predicted += f" UNION ALL BY NAME SELECT {', '.join(_SHARED_COLUMNS)}, status{failed}"
                joined += f" UNION ALL BY NAME SELECT * EXCLUDE (source_raw){failed}"
            tables = (f"({predicted})", f"({joined})")
        return tuple(f"{table} WHERE {run} AND ({self.condition or 'true'}\n)" for table in tables)


def completeness(reader: Reader, run: Run) -> Completeness:
    """Return whether each sample that did not fail has one graded prediction, with the same values of what both tables hold.

    Sums of 64-bit hashes tell, so nothing is joined.
    """
    if not run.graded:
        return "unknown"
    # Hashed twice: DuckDB combines column hashes so that values exchanged between rows would cancel out.
    content = f"SELECT count(*), sum(hash(hash({', '.join(_SHARED_COLUMNS)})))"
    sampled, predicted = (
        reader.sql(f"{content} FROM {rows}", parameters=[run.run_id]).fetchone()
        for rows in ("samples WHERE run_id = ? AND status = 'ok'", "graded_predictions WHERE run_id = ?")
    )
    if sampled != predicted:
        return "unknown"
    return "all but failed" if run.failed else "all"


class GalleryRow(VisitPlace):
    """One sample of a gallery."""

    label: int | None
    predicted: int | None
    confidence: float | None
    correct: bool | None
    loss: float | None
    label_name: str | None
    predicted_name: str | None
    status: str
    sort_key: float


@dataclass(frozen=True, slots=True)
class GalleryBlock:
    """The queries of one block (try them in order: the first needs fewer columns) and their parameters."""

    queries: tuple[str, ...]
    parameters: list[Any]
    order: str

    def cursor(self, row: GalleryRow) -> str:
        """Return where the next block begins, given the last row of this one."""
        return json.dumps([row["sort_key"], row["epoch"], row["index"], row["visit"]], separators=(",", ":"))


def block(
    picked: PickedSamples,
    *,
    order: str = "loss",
    after: str | None = None,
    limit: int = 60,
    including: bool = False,
) -> GalleryBlock:
    """Return the samples after a cursor. `including` begins with the sample at the cursor itself."""
    descending = _expression(order)[1]
    parameters: list[Any] = []
    beyond = ""
    if after is not None:
        beyond, given = _cursor_condition(after, descending, False, including)
        parameters += given
    way = "DESC" if descending else "ASC"
    queries = tuple(
        f"SELECT * FROM ({inner}) {beyond} ORDER BY sort_key {way}, index, epoch, visit LIMIT {int(limit)}"
        for inner in _order_samples(picked, order)
    )
    return GalleryBlock(queries, parameters, order)


def place(picked: PickedSamples, key: Key, *, order: str) -> GalleryBlock:
    """Return the one sample that a key names, if it meets the condition: its cursor says where it is in the order."""
    queries = tuple(
        f"SELECT * FROM ({inner}) WHERE epoch = ? AND index = ? AND visit = ? LIMIT 1"
        for inner in _order_samples(picked, order)
    )
    return GalleryBlock(queries, [*key], order)


def neighbours(picked: PickedSamples, key: Key, *, order: str, many: int = 1) -> GalleryBlock:
    """Return where the samples around one are, in one scan: lists `before` and `after`, the nearest first, each as [index, epoch,
    visit]. A list is NULL if there are none, and shorter than `many` if there are no more."""
    sign = "-" if _expression(order)[1] else ""
    found = "list_transform({0}, lambda p: [struct_extract(p, 2), struct_extract(p, 3), struct_extract(p, 4)]) AS {0}"
    queries = tuple(
        f"WITH placed AS NOT MATERIALIZED (SELECT epoch, index, visit, row({sign}sort_key, index, epoch, visit) AS place "
        f"FROM ({inner})), here AS (SELECT place FROM placed WHERE epoch = ? AND index = ? AND visit = ?) "
        f"SELECT {found.format('before')}, {found.format('after')} FROM ("
        f"SELECT max(p.place, {int(many)}) FILTER (p.place < here.place) AS before, "
        f"min(p.place, {int(many)}) FILTER (p.place > here.place) AS after FROM placed p, here)"
        for inner in _order_samples(picked, order)
    )
    return GalleryBlock(queries, [*key], order)


def count_earlier(picked: PickedSamples, cursor: str, *, order: str) -> GalleryBlock:
    """Return how many samples come before a cursor."""
    beyond, given = _cursor_condition(cursor, not _expression(order)[1], True, False)
    queries = tuple(f"SELECT count(*) AS earlier FROM ({inner}) {beyond}" for inner in _order_samples(picked, order))
    return GalleryBlock(queries, given, order)


def _expression(order: str) -> tuple[str, bool]:
    if order not in ORDERS:
        raise UsageError(f"Samples cannot be sorted by {order!r}.", hint=f"Choose one of {', '.join(ORDERS)}.")
    return ORDERS[order]


def _order_samples(picked: PickedSamples, order: str) -> tuple[str, ...]:
    """Return the samples with their sort key, as queries to be tried in order: the first needs fewer columns."""
    expression, descending = _expression(order)
    # A missing or non-finite value sorts last either way; one number makes comparisons total.
    last = "-1e308" if descending else "1e308"
    key = f"CASE WHEN isfinite(({expression})::DOUBLE) THEN ({expression})::DOUBLE ELSE {last} END"
    # Two columns of text cost more than all the rest: a run that lists its classes has the names already.
    names = "NULL AS label_name, NULL AS predicted_name" if picked.run.classes else _NAMES
    return tuple(f"SELECT {_SHOWN_COLUMNS}, {names}, status, {key} AS sort_key FROM {rows}" for rows in picked.rows)


def _cursor_condition(cursor: str, descending: bool, backwards: bool, including: bool) -> tuple[str, list[Any]]:
    value, epoch, index, visit = _cursor(cursor)
    compare, tie = ("<" if descending else ">"), ("<" if backwards else ">") + ("=" if including else "")
    text = f"WHERE sort_key {compare}= ? AND (sort_key <> ? OR (index, epoch, visit) {tie} (?, ?, ?))"
    return text, [value, value, index, epoch, visit]


def with_names(run: Run, samples: list[GalleryRow]) -> list[GalleryRow]:
    """Return the rows of a block with the names of their classes."""
    classes = run.classes or []
    for row in samples:
        label, predicted = row["label"], row["predicted"]
        if label is not None and 0 <= label < len(classes):
            row["label_name"] = classes[label]
        if predicted is not None and 0 <= predicted < len(classes):
            row["predicted_name"] = classes[predicted]
    return samples


def count_queries(picked: PickedSamples) -> tuple[str, ...]:
    """Return the queries that count the samples, to be tried in order."""
    return tuple(f"SELECT count(*) FROM {rows}" for rows in picked.rows)


def _cursor(text: str) -> tuple[float, int, int, int]:
    try:
        value, epoch, index, visit = json.loads(text)
        return float(value), int(epoch), int(index), int(visit)
    except (ValueError, TypeError) as error:
        raise UsageError(
            "The address does not name a position in this gallery.", hint="Open the gallery again."
        ) from error
