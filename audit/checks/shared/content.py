"""A sample's content, for checks that look for repeated content: its bytes, or else its decoded value."""

from __future__ import annotations

from typing import Any

import numpy as np

from audit.checks.context import GRIDS, Context
from audit.store.plain_arrays import numbers_of
from audit.store.sql_literal import literal

#: At most this many repeated contents are listed in a query; for more, all rows are read.
_FEW = 10_000
#: The name of the stage that is the finished item.
_ITEM_STAGE = "audit.stage.item"
#: Blank outputs, as the check `blank` reports them: they are equal because nothing was loaded.
_BLANK = f"kind IN {GRIDS} AND min = max AND list_product(shape) >= 16"


def contents(context: Context) -> str:
    """Return SQL for the items with a column `content`."""
    items = context.items
    if items not in context.facts.cache:
        undigested = f"FROM {items} WHERE source_digest IS NULL AND status = 'ok' LIMIT 1"
        digested = f"(FROM {items} WHERE source_digest IS NOT NULL)"
        plain = not context.rows(undigested) and not len(_find_recurring_hashes(context, "source", digested))
        context.facts.cache[items] = _contents(items, context.run.run_id, plain, _find_item_stage(context))
    found: str = context.facts.cache[items]
    return found


def are_contents_compared(context: Context) -> bool:
    """Return whether another check has looked for repeated content already, so that asking again is cheap."""
    return (context.facts.cache.get(context.items), "recurring") in context.facts.cache


def select_recurring(context: Context) -> str:
    """Return SQL for the items whose content is repeated; for all items if too many are. Blank pictures, which `blank` reports, are left out."""
    items = contents(context)
    hashes = context.facts.cache.get((items, "recurring"))
    if hashes is None:
        hashes = context.facts.cache[items, "recurring"] = _find_recurring_hashes(context, "content", items)
    chosen = "content IS NOT NULL"
    if len(hashes) <= _FEW:
        chosen = f"hash(content) IN ({', '.join(map(str, hashes.tolist())) or 'NULL'})"
    if any(row["constant"] for row in context.profile if row["stage"] == 0):
        chosen += (
            f" AND (epoch, index, visit) NOT IN (SELECT (epoch, index, visit) FROM {context.load_outputs} "
            f"WHERE {_BLANK})"
        )
    return f"(FROM {items} WHERE {chosen})"


def select_alike(context: Context, having: str, by: tuple[str, ...] = ()) -> str:
    """Return SQL for the items with shared content that meets `having`, each with the first such item and its rank; within each value of the columns `by`."""
    items = select_recurring(context)
    key = ", ".join(("content", *by))
    # Only shared digests are joined back; the others stay in the first aggregate.
    shared = f"SELECT {key}, count(*) AS copies FROM {items} GROUP BY {key} HAVING {having}"
    return (
        "(SELECT s.*, copies, first_value(s.index) OVER alike AS first, first_value(s.source) OVER alike AS "
        f"first_source, row_number() OVER alike AS place FROM {items} s JOIN ({shared}) USING ({key}) "
        f"WINDOW alike AS (PARTITION BY {key} ORDER BY s.index, s.epoch, s.visit))"
    )


def _find_recurring_hashes(context: Context, column: str, rows: str) -> np.ndarray[Any, Any]:
    """Return the hashes of a column's values that several rows share: 24 bytes a row, where GROUP BY takes 80."""
    query = f"SELECT hash({column}) AS hash FROM {rows} WHERE {column} IS NOT NULL"
    hashes = np.sort(numbers_of(context.reader.sql(query, run=[context.run.run_id]).arrow()["hash"]))
    return np.unique(hashes[1:][hashes[1:] == hashes[:-1]])


def contents_of(run_id: str) -> str:
    """Return SQL for all visits of another run, with the same column."""
    return _contents(f"(FROM samples WHERE run_id = {literal(run_id)})", run_id, False, None)


def _find_item_stage(context: Context) -> int | None:
    """Return the stage that is the finished item, which is there where audit did not see a part of it being made: `load` is then only a part of it."""
    return next((stage.stage for stage in context.facts.stages if stage.qualname == _ITEM_STAGE), None)


def _contents(items: str, run_id: str, plain: bool, item: int | None) -> str:
    if plain:
        return f"(SELECT *, source_digest AS content FROM {items})"
    digests = f"SELECT epoch, index, visit, digest FROM stage_outputs WHERE run_id = {literal(run_id)} AND stage = 0"
    if item is not None:
        digests = (
            "SELECT epoch, index, visit, string_agg(digest, '-' ORDER BY stage) AS digest FROM stage_outputs "
            f"WHERE run_id = {literal(run_id)} AND stage IN (0, {item}) GROUP BY epoch, index, visit"
        )
    # Samples without a file, and several samples from one file (frames of a clip), are identified by their stage 0.
    return (
        "(SELECT s.*, CASE WHEN s.source_digest IS NULL "
        "OR count(*) OVER (PARTITION BY s.source) > count(*) OVER (PARTITION BY s.source, o.digest) "
        "THEN o.digest ELSE s.source_digest END AS content "
        f"FROM {items} s LEFT JOIN ({digests}) o USING (epoch, index, visit))"
    )
