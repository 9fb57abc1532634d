"""Which visit of one run is which visit of another: by source, by bytes, by the loaded value, by name.

The rules are those of `store.comparison`. A source that a run visits several times is paired in order. Every visit ends
up in exactly one place: matched in the table `pairs`, or alone in the table `alone`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from audit.errors import NotFound
from audit.records import Run, Stage
from audit.store.comparison import matching
from audit.store.read.scratch import Scratch


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs: which epoch of it is compared, and its stages."""

    run: Run
    epoch: int
    stages: list[Stage] = field(default_factory=list)

    @property
    def run_literal(self) -> str:
        """The run's id as SQL."""
        return "'" + self.run.run_id.replace("'", "''") + "'"

    @property
    def rows(self) -> str:
        """The condition that a table's rows belong to this side."""
        return f"run_id = {self.run_literal} AND epoch = {self.epoch}"


def side_of(scratch: Scratch, run: Run) -> Side:
    """A run at its last complete epoch, with its stages."""
    (newest,) = scratch.row("SELECT max(epoch) FROM samples WHERE run_id = ?", [run.run_id])
    if newest is None:
        raise NotFound(f"The run {run.run_id} holds no sample.", hint="See which runs do with: audit runs")
    query = f"SELECT {', '.join(Stage.__slots__)} FROM stages WHERE run_id = ? ORDER BY stage"
    epoch = newest if run.last_epoch is None else run.last_epoch
    return Side(run, epoch, [Stage(*row) for row in scratch.rows(query, [run.run_id])])


def match(scratch: Scratch, a: Side, b: Side) -> None:
    """Make the tables `pairs` and `alone`."""
    once = all(_sources_are_unique(scratch, side) for side in (a, b))
    tables = matching(a.rows, b.rows, nth="1") if once else matching(a.rows, b.rows)
    for name, query in tables.items():
        scratch.keep(name, query)
    for name in tables.keys() - {"pairs", "alone"}:
        scratch.drop(name)


def _sources_are_unique(scratch: Scratch, side: Side) -> bool:
    query = f"SELECT count(*) = count(DISTINCT coalesce(source, 'dataset://' || index)) FROM samples WHERE {side.rows}"
    return bool(scratch.row(query)[0])
