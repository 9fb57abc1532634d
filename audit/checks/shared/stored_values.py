"""Stage outputs of some samples that were stored whole, as arrays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from audit.checks.context import GRIDS, Context
from audit.checks.shared.files import evenly
from audit.checks.shared.hashes import Array

#: The epoch, index and visit of a sample.
Visit = tuple[int, int, int]


def stored_values(context: Context, most: int) -> Iterator[tuple[Visit, int, Array | None]]:
    """Yield the visit, the stage and the value of at most `most` samples, evenly chosen, visit by visit in order of stages.

    A stage that changed nothing has no value of its own. The value is None if it cannot be decoded.
    """
    total = context.value(f"SELECT count(*) FROM {context.items} WHERE status = 'ok'")
    chosen = f" AND {evenly(most, total)}" if total > most else ""
    numbers = ", ".join(map(str, sorted(context.stage_numbers)))
    query = (
        f"SELECT epoch, index, visit, stage, kind, encoding, data FROM payloads WHERE run_id = {context.run_literal} "
        f"AND form = 'full' AND kind IN {GRIDS} AND stage IN ({numbers}){chosen}{context.of_items} "
        "ORDER BY epoch, index, visit, stage"
    )
    from audit import values

    for _, rows in context.reader.sql(query, run=[context.run.run_id]).batches(64):
        for epoch, index, visit, stage, kind, encoding, data in rows:
            try:
                value = np.asarray(values.decode(kind, values.Encoded(encoding, data), numpy_only=True))
            except Exception:
                yield (epoch, index, visit), stage, None
            else:
                yield (epoch, index, visit), stage, value


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return which axis of a picture, array or tensor has its channels; None if it has no such axis."""
    if len(shape) != 3:
        return None
    return 2 if shape[2] in (2, 3, 4) else 0 if shape[0] in (1, 2, 3, 4) else None
