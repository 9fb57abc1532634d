"""The rows of a table: samples that were loaded as one vector of numbers each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audit.checks.base import Skip
from audit.checks.context import Context
from audit.checks.shared.files import spread_evenly
from audit.checks.shared.hashes import Array

#: Longer vectors are sounds or flattened pictures; whole numbers are tokens, whose places are not columns.
_MOST_COLUMNS = 1_000
_MOST_ROWS = 5_000


@dataclass(frozen=True)
class NumberTable:
    """Loaded vectors of one length, one row for each sample, with the index, label and split of each."""

    values: Array
    indices: list[int]
    labels: list[int | None]
    splits: list[str | None]


def read_table(context: Context) -> NumberTable:
    """Return at most 5,000 rows, evenly chosen and read once; raise Skip if the samples are not rows of a table."""
    key = ("table", context.narrowing)
    if key not in context.facts.cache:
        try:
            context.facts.cache[key] = _read(context)
        except Skip as skipped:
            context.facts.cache[key] = skipped
    found: NumberTable | Skip = context.facts.cache[key]
    if isinstance(found, Skip):
        raise Skip(str(found))
    return found


def _read(context: Context) -> NumberTable:
    from audit import values

    if not any(
        row["stage"] == 0 and row["kind"] in ("tensor", "array") and str(row["dtype"]).startswith("float")
        for row in context.profile
    ):
        raise Skip("the samples are not rows of numbers")
    shape = context.rows(
        f"SELECT shape, count(*) AS rows FROM {context.load_outputs} GROUP BY shape ORDER BY rows DESC LIMIT 1"
    )[0]["shape"]
    if shape is None or len(shape) != 1 or not 2 <= shape[0] <= _MOST_COLUMNS:
        raise Skip("the samples are not rows of numbers")
    total = context.value(f"SELECT count(*) FROM {context.items} WHERE status = 'ok'")
    chosen = f" AND {spread_evenly(_MOST_ROWS, total)}" if total > _MOST_ROWS else ""
    query = (
        f"SELECT index, label, split, payloads.kind, encoding, data FROM (FROM {context.items} WHERE status = 'ok'{chosen}) "
        "JOIN payloads USING (run_id, epoch, index, visit) WHERE stage = 0 AND form = 'full' ORDER BY split, index"
    )
    rows = context.rows(query)
    decoded = [
        np.asarray(values.decode(row["kind"], values.EncodedValue(row["encoding"], row["data"]), numpy_only=True))
        for row in rows
    ]
    kept = [n for n, value in enumerate(decoded) if list(value.shape) == shape]
    if not kept:
        raise Skip("no row was stored whole; record with --capture full")
    return NumberTable(
        np.stack([decoded[n] for n in kept]).astype(np.float64),
        [rows[n]["index"] for n in kept],
        [rows[n]["label"] for n in kept],
        [rows[n]["split"] for n in kept],
    )
