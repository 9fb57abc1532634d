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
from audit.store.comparison import write_matching_queries
from audit.store.read.rows import field_names
from audit.store.read.scratch import Scratch, TempTable
from audit.store.sql_literal import literal


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
    kept = {name: scratch.keep(name, query) for name, query in tables.items()}
    alone = kept.pop("alone")
    read = {name for name in kept if re.search(rf"\b{name}\b", pairs)}
    for name in kept.keys() - read:
        scratch.drop(kept[name])
    # A name only: as a table it would be a copy of nearly all of `by_source`.
    return MatchedVisits(scratch.name("pairs", pairs), alone, [kept[name] for name in read])


def _sources_are_unique(scratch: Scratch, side: Side) -> bool:
    # By their hashes, which take less memory: where two sources hash alike, they are only counted for nothing.
    source = "coalesce(source, 'dataset://' || index)"
    return bool(scratch.row(f"SELECT count(*) = count(DISTINCT hash({source})) FROM samples WHERE {side.rows}")[0])
