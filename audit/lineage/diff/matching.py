"""Which visit of one run is which visit of another: by source, by bytes, by the loaded value, by looks, by name.

The rules are those of `store.comparison`. A source that a run visits several times is paired by the loaded value if
several samples have it, and then in order. Every visit ends up in exactly one of two temporary tables: matched in
`pairs`, or alone in `alone`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from audit.errors import NotFound
from audit.records import Run, Stage
from audit.store.comparison import match_lone_visits, match_unique_sources, write_matching_queries
from audit.store.read.rows import field_names
from audit.store.read.scratch import Scratch, TempTable
from audit.store.sql_literal import literal

#: So many visits of each side are matched, and later compared, at once.
MOST_VISITS = 1_000_000
_IS_PAIR = "index_a IS NOT NULL AND index_b IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs: which epoch of it is compared, and its stages."""

    run: Run
    epoch: int
    stages: list[Stage] = field(default_factory=list)

    @property
    def run_literal(self) -> str:
        """The run's id as SQL."""
        return literal(self.run.run_id)

    @property
    def rows(self) -> str:
        """The condition that a table's rows belong to this side."""
        return f"run_id = {self.run_literal} AND epoch = {self.epoch}"


def side_of(scratch: Scratch, run: Run) -> Side:
    """Return a run at its last complete epoch, with its stages."""
    (newest,) = scratch.row("SELECT max(epoch) FROM samples WHERE run_id = ?", [run.run_id])
    if newest is None:
        raise NotFound(f"The run {run.run_id} has no samples.", hint="See which runs do with: audit runs")
    query = f"SELECT {', '.join(field_names(Stage))} FROM stages WHERE run_id = ? ORDER BY stage"
    epoch = newest if run.last_epoch is None else run.last_epoch
    return Side(run, epoch, scratch.typed_rows(Stage, query, [run.run_id]))


@dataclass(frozen=True, slots=True)
class MatchedVisits:
    """The temporary tables of matched visits and of those that only one run has; store/comparison.py says their columns."""

    pairs: TempTable
    alone: TempTable
    #: The tables that `pairs` is made of.
    pair_sources: list[TempTable]


def match_visits(scratch: Scratch, a: Side, b: Side) -> MatchedVisits:
    """Match the visits of both sides, and return the temporary tables that hold them."""
    unique = all(_sources_are_unique(scratch, side) for side in (a, b))
    tables = write_matching_queries(a.rows, b.rows, sources_are_unique=unique)
    pairs = tables.pop("pairs")
    kept: dict[str, TempTable] = {}
    # The tables that a name among `kept` stands for.
    behind: dict[str, list[TempTable]] = {}
    ranges = _split_indices(scratch, a, b) if unique else []
    for name, query in tables.items():
        if name == "by_source" and (found := _match_in_ranges(scratch, a, b, ranges)) is not None:
            kept[name], behind[name] = found
        else:
            kept[name] = scratch.keep(name, query)
    alone = kept.pop("alone")
    read = {name for name in kept if re.search(rf"\b{name}\b", pairs)}
    for name in kept.keys() - read:
        scratch.drop(kept[name])
    # A name only: as a table it would be a copy of nearly all of `by_source`.
    tables_read = [table for name in read for table in behind.get(name, [kept[name]])]
    return MatchedVisits(scratch.name("pairs", pairs), alone, tables_read)


def _split_indices(scratch: Scratch, a: Side, b: Side) -> list[tuple[int, int]]:
    """Return ranges that hold all indices of both sides, of about `MOST_VISITS` samples each; nothing if one is enough."""
    bounds = "SELECT count(*), min(index), max(index) FROM samples WHERE "
    counts, firsts, lasts = zip(*(scratch.row(bounds + side.rows) for side in (a, b)), strict=True)
    if max(counts) <= MOST_VISITS or not min(counts):
        return []
    first, last = min(firsts), max(lasts)
    width = max(1, (last - first + 1) * MOST_VISITS // max(counts))
    return [(start, start + width - 1) for start in range(first, last + 1, width)]


def _match_in_ranges(
    scratch: Scratch, a: Side, b: Side, ranges: list[tuple[int, int]]
) -> tuple[TempTable, list[TempTable]] | None:
    """Match visits by their sources, first those in the same range of indices, then what is left of both runs.

    Return `by_source` as a name, and the tables behind it. The pairs are then in order of their indices, in memory and on the
    disk, and a join never holds more than a range. None if few samples have their partner in the same range.
    """
    nearby = TempTable("")
    for first, last in ranges:
        rows = [f"{side.rows} AND index BETWEEN {first} AND {last}" for side in (a, b)]
        tables = [scratch.rows_between("samples", side.run.run_id, first, last) for side in (a, b)]
        query = match_unique_sources(*rows, *tables)
        if nearby:
            scratch.change(f"INSERT INTO {nearby} {query}")
            continue
        nearby = scratch.keep("nearby", query)
        matched, found = scratch.row(f"SELECT count(*) FILTER ({_IS_PAIR}), count(*) FROM {nearby}")
        if 2 * matched < found:
            scratch.drop(nearby)
            return None
    if not nearby:
        return None
    left = scratch.keep("left_over", match_lone_visits(nearby))
    both = f"FROM {nearby} WHERE {_IS_PAIR} UNION ALL BY NAME FROM {left}"
    return scratch.name("by_source", both), [nearby, left]


def _sources_are_unique(scratch: Scratch, side: Side) -> bool:
    # By their hashes, which take less memory: where two sources hash alike, they are only counted for nothing.
    source = "coalesce(source, 'dataset://' || index)"
    return bool(scratch.row(f"SELECT count(*) = count(DISTINCT hash({source})) FROM samples WHERE {side.rows}")[0])
