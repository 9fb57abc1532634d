"""Pair the sources of this run and of the baseline: two sorted streams, so that a million need little memory."""

from __future__ import annotations

from collections.abc import Iterator

from audit.checks.baseline import Baseline, Item, items_of
from audit.checks.context import Context


def pair_by_source(context: Context, baseline: Baseline) -> Iterator[tuple[Item | None, Item | None]]:
    """Yield (before, now) for every source of either; None where one does not have it."""
    return pairs(baseline.sources(), items_of(context.reader, context.run.run_id))


def pairs(old: Iterator[Item], new: Iterator[Item]) -> Iterator[tuple[Item | None, Item | None]]:
    """Yield (before, now) for every source of two sorted streams; None where one does not have it."""
    before, now = next(old, None), next(new, None)
    while before is not None or now is not None:
        if now is None or (before is not None and _key(before) < _key(now)):
            yield before, None
            before = next(old, None)
        elif before is None or _key(now) < _key(before):
            yield None, now
            now = next(new, None)
        else:
            yield before, now
            before, now = next(old, None), next(new, None)


def _key(item: Item) -> bytes:
    # As the store sorts them: by their bytes.
    return item.source.encode("utf-8", "surrogatepass")


def lookup(context: Context, sources: list[str]) -> dict[str, int]:
    """Return the index of each given source in this run."""
    if not sources:
        return {}
    rows = context.facts.query(
        f"SELECT source, min(index) AS index FROM {context.items} WHERE list_contains(?, source) GROUP BY source",
        parameters=[sources],
    )
    return {row["source"]: row["index"] for row in rows}
