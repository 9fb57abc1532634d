"""Stage outputs of some samples that were stored whole, as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from audit.checks.context import GRIDS, Context
from audit.checks.shared.hashes import Array

#: Stored values of at most this many bytes are kept for the next check.
_MOST_KEPT = 64 * 2**20
#: Samples are chosen in groups of so many neighbours.
_GROUP = 4
#: The epoch, index and visit of a sample.
Visit = tuple[int, int, int]


def stored_values(context: Context, most: int) -> Iterator[tuple[Visit, int, Array | None]]:
    """Yield the visit, the stage and the value of about `most` samples, evenly chosen, visit by visit in order of stages.

    A stage that changed nothing has no value of its own. The value is None if it cannot be decoded.
    """
    from audit import values

    for epoch, index, visit, stage, kind, encoding, data in _rows(context, most):
        try:
            value = np.asarray(values.decode(kind, values.EncodedValue(encoding, data), numpy_only=True))
        except Exception:
            yield (epoch, index, visit), stage, None
        else:
            yield (epoch, index, visit), stage, value


def _rows(context: Context, most: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the stored values, read once for all checks unless they take much memory."""
    total = context.value(f"SELECT count(*) FROM {context.items} WHERE status = 'ok'")
    chosen = ""
    if total > most:
        # Neighbours are stored together, and a list of indices skips the parts that have none of them.
        groups = max(1, most // _GROUP)
        some = f"((index // {_GROUP}) * {groups}) % {max(1, total // _GROUP)} < {groups}"
        some_rows = context.rows(f"SELECT DISTINCT index FROM {context.items} WHERE status = 'ok' AND {some}")
        chosen = f" AND index IN ({', '.join(str(row['index']) for row in some_rows) or 'NULL'})"
    numbers = ", ".join(map(str, sorted(context.stage_numbers)))
    query = (
        f"SELECT epoch, index, visit, stage, kind, encoding, data FROM payloads WHERE run_id = {context.run_literal} "
        f"AND form = 'full' AND kind IN {GRIDS} AND stage IN ({numbers}){chosen}{context.of_items} "
        "ORDER BY epoch, index, visit, stage"
    )
    if query in context.facts.cache:
        yield from context.facts.cache[query]
        return
    kept: list[tuple[Any, ...]] = []
    size = 0
    for _, rows in context.reader.sql(query, run=[context.run.run_id]).batches(64):
        yield from rows
        size += sum(len(row[-1]) for row in rows)
        kept = [*kept, *rows] if size <= _MOST_KEPT else []
    if size <= _MOST_KEPT:
        context.facts.cache[query] = kept


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return which axis of a picture, array or tensor has its channels; None if it has no such axis."""
    if len(shape) != 3:
        return None
    return 2 if shape[2] in (2, 3, 4) else 0 if shape[0] in (1, 2, 3, 4) else None
