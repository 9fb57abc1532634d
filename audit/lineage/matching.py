"""Which visit of one run is which visit of another: by source, then by content.

A file that was renamed or moved keeps its bytes, so what finds no partner by its source may find one by its digest. A
source that a run visits several times is paired in order. Every visit ends up in exactly one place: matched in the
table `pairs`, or alone in the table `alone`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from audit.errors import NotFound
from audit.records import Run, Stage
from audit.store.scratch import Scratch


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs: which epoch of it is compared, and its stages."""

    run: Run
    epoch: int
    stages: list[Stage] = field(default_factory=list)

    @property
    def rows(self) -> str:
        """The condition that a table's rows belong to this side."""
        return f"run_id = '{self.run.run_id.replace(chr(39), chr(39) * 2)}' AND epoch = {self.epoch}"


def side_of(scratch: Scratch, run: Run) -> Side:
    """A run at its last epoch, with its stages."""
    (epoch,) = scratch.row("SELECT max(epoch) FROM samples WHERE run_id = ?", [run.run_id])
    if epoch is None:
        raise NotFound(f"The run {run.run_id} holds no sample.", hint="See which runs do with: audit runs")
    query = f"SELECT {', '.join(Stage.__slots__)} FROM stages WHERE run_id = ? ORDER BY stage"
    return Side(run, epoch, [Stage(*row) for row in scratch.rows(query, [run.run_id])])


# A source given only once needs no counting, which spares a sort of all sources in the usual case.
_VISITS = """
    SELECT index, visit, coalesce(source, 'dataset://' || index) AS source, source_digest, label, label_name,
           status = 'failed' AS failed, {nth} AS nth
    FROM samples WHERE {rows}
"""
_NTH = "row_number() OVER (PARTITION BY coalesce(source, 'dataset://' || index) ORDER BY split, index, visit)"

_FACED = """
    SELECT x.index AS index_a, x.visit AS visit_a, y.index AS index_b, y.visit AS visit_b,
           coalesce(x.source, y.source) AS source, x.label AS label_a, y.label AS label_b,
           x.label_name AS label_name_a, y.label_name AS label_name_b, x.failed AS failed_a, y.failed AS failed_b,
           x.source_digest IS NOT NULL AND y.source_digest IS NOT NULL AS comparable,
           x.source_digest <> y.source_digest AS other_bytes,
           CASE WHEN x.index IS NULL OR y.index IS NULL THEN coalesce(x.source_digest, y.source_digest) END AS digest
    FROM ({a}) x FULL OUTER JOIN ({b}) y ON x.source = y.source AND x.nth = y.nth
"""

_RENAMED = """
    WITH gone AS (
        SELECT *, row_number() OVER (PARTITION BY digest ORDER BY index_a, visit_a) AS nth
        FROM faced WHERE index_b IS NULL AND digest IS NOT NULL
    ), come AS (
        SELECT *, row_number() OVER (PARTITION BY digest ORDER BY index_b, visit_b) AS nth
        FROM faced WHERE index_a IS NULL AND digest IS NOT NULL
    )
    SELECT g.index_a, g.visit_a, c.index_b, c.visit_b, g.source, c.source AS renamed_to, g.label_a, c.label_b,
           g.label_name_a, c.label_name_b, g.failed_a, c.failed_b, true AS comparable, false AS other_bytes
    FROM gone g JOIN come c USING (digest, nth)
"""

_PAIRS = """
    SELECT * EXCLUDE (digest), NULL::VARCHAR AS renamed_to FROM faced WHERE index_a IS NOT NULL AND index_b IS NOT NULL
    UNION ALL BY NAME FROM renamed
"""

_ALONE = """
    SELECT source, index_a, visit_a, index_b, visit_b, coalesce(label_a, label_b) AS label,
           coalesce(label_name_a, label_name_b) AS label_name
    FROM faced WHERE (index_a IS NULL OR index_b IS NULL)
      AND NOT EXISTS (FROM renamed r WHERE r.index_a = faced.index_a AND r.visit_a = faced.visit_a)
      AND NOT EXISTS (FROM renamed r WHERE r.index_b = faced.index_b AND r.visit_b = faced.visit_b)
"""


def match(scratch: Scratch, a: Side, b: Side) -> None:
    """Make the tables `pairs` and `alone`."""
    once = all(_sources_are_unique(scratch, side) for side in (a, b))
    visits = {name: _VISITS.format(rows=side.rows, nth="1" if once else _NTH) for name, side in (("a", a), ("b", b))}
    scratch.keep("faced", _FACED.format(**visits))
    scratch.keep("renamed", _RENAMED)
    scratch.keep("pairs", _PAIRS)
    scratch.keep("alone", _ALONE)
    scratch.drop("faced")
    scratch.drop("renamed")


def _sources_are_unique(scratch: Scratch, side: Side) -> bool:
    query = f"SELECT count(*) = count(DISTINCT coalesce(source, 'dataset://' || index)) FROM samples WHERE {side.rows}"
    return bool(scratch.row(query)[0])
