"""Pieces in which two runs are compared one after another, so that memory does not grow with the runs.

Runs over the same dataset have the same samples at the same or nearby indices: the rows of a range of indices of one run, and those of
their partners, lie in few parts of the store. Pairs whose indices are far apart are compared together at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from audit.lineage.diff import matching
from audit.store.read.scratch import Scratch, TempTable

#: Stage outputs on each side that are compared at once.
_MOST_OUTPUTS = 6_000_000

# Some more of the second run, for renamed samples at the ends of a range.
_BOUNDS = """
    SELECT index_a // {width} * {width} AS first, first + {width} - 1, min(index_b) - {width} // 100, max(index_b) + {width} // 100
    FROM {pairs} WHERE how = 'source' GROUP BY first ORDER BY first
"""


@dataclass(frozen=True, slots=True)
class PieceRows:
    """The rows that one run has of the visits of a piece: the tables to read, as SQL, and the condition that rows meet."""

    condition: str
    outputs: str = "stage_outputs"
    predictions: str = "predictions"


@dataclass(frozen=True, slots=True)
class ComparisonPiece:
    """Some pairs, as a table, and the rows of their visits on either side."""

    pairs: str
    a: PieceRows
    b: PieceRows


def split_pairs(scratch: Scratch, pairs: TempTable, a: matching.Side, b: matching.Side) -> list[ComparisonPiece]:
    """Return pieces that hold each pair once; one piece for few pairs, or if the runs have the samples in another order."""
    whole = [ComparisonPiece(pairs, PieceRows(a.rows), PieceRows(b.rows))]
    count, first, last = scratch.row(f"SELECT count(*), min(index_a), max(index_a) FROM {pairs}")
    most = min(matching.MOST_VISITS, _MOST_OUTPUTS // max(len(a.stages), len(b.stages), 1))
    if count <= most:
        return whole
    width = max(1, (last - first + 1) * most // count)
    ranges = scratch.rows(_BOUNDS.format(pairs=pairs, width=width))
    if not _is_narrow(ranges):
        return whole
    chosen = [
        _range_condition("index_a", *bounds[:2]) + " AND " + _range_condition("index_b", *bounds[2:])
        for bounds in ranges
    ]
    pieces = [
        ComparisonPiece(f"(FROM {pairs} WHERE {near})", _rows(scratch, a, *bounds[:2]), _rows(scratch, b, *bounds[2:]))
        for near, bounds in zip(chosen, ranges, strict=True)
    ]
    far = scratch.keep("far", f"FROM {pairs} WHERE NOT ({' OR '.join(chosen)})")
    if scratch.row(f"SELECT count(*) FROM {far}")[0]:
        own = [f"{side.rows} AND index IN (SELECT index_{name} FROM {far})" for side, name in ((a, "a"), (b, "b"))]
        pieces.append(ComparisonPiece(far, PieceRows(own[0]), PieceRows(own[1])))
    return pieces


def _rows(scratch: Scratch, side: matching.Side, first: int, last: int) -> PieceRows:
    tables = [scratch.rows_between(table, side.run.run_id, first, last) for table in ("stage_outputs", "predictions")]
    return PieceRows(f"{side.rows} AND {_range_condition('index', first, last)}", *tables)


def _range_condition(column: str, first: int, last: int) -> str:
    return f"{column} BETWEEN {first} AND {last}"


def _is_narrow(ranges: list[tuple[int, int, int, int]]) -> bool:
    """Return whether each part of the second run is needed for few ranges, so that it is not read again for all of them."""
    if not ranges:
        return False
    span = max(bounds[3] for bounds in ranges) - min(bounds[2] for bounds in ranges) + 1
    return sum(bounds[3] - bounds[2] + 1 for bounds in ranges) <= 2 * span
