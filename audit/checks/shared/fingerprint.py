"""Compare two sets of rows in one pass over each: joining millions of rows to find nothing is expensive.

Equal fingerprints mean equal rows: sums of 64-bit hashes agree by chance once in 2**64.
"""

from __future__ import annotations

from typing import Any

from audit.checks.context import Context

#: The columns that identify a visit in every table.
VISIT = "epoch, index, visit"
#: The most bits that DuckDB keeps for one group, and the most that are worthwhile for each row.
_MOST_BITS, _SPARSE = 1_000_000_000, 64


def fingerprint(columns: str) -> str:
    """Return SQL for an aggregate over rows in any order: their number, and the sum of their hashes."""
    # Hashed twice: DuckDB combines column hashes so that values exchanged between rows would cancel out.
    return f"{{rows: count(*), sum: sum(hash(hash({columns})))}}"


def fingerprints(context: Context, columns: str, rows: str, group: str = "true") -> list[Any]:
    """Return the fingerprint of each group of the rows; a query that several checks use runs once."""
    found = context.query_once(f"SELECT {fingerprint(columns)} AS found FROM {rows} GROUP BY {group}")
    return [row["found"] for row in found]


def have_same_rows(context: Context, columns: str, rows: str, others: str, other_columns: str | None = None) -> bool:
    """Return whether two relations hold the same rows, each the same number of times."""
    return fingerprints(context, columns, rows) == fingerprints(context, other_columns or columns, others)


def distinct_indices(length: int) -> str:
    """Return SQL for an aggregate that counts the different indices below a length, with one bit for each."""
    return (
        f"coalesce(bit_count(bitstring_agg(index, 0, {length - 1}) FILTER (index BETWEEN 0 AND {length - 1})), 0)"
        if 0 < length <= _MOST_BITS
        else f"count(DISTINCT index) FILTER (index BETWEEN 0 AND {length - 1})"
    )


def has_unique_visits(context: Context, table: str) -> bool:
    """Return True if a count with one bit for each index shows that no visit has two rows; False if it cannot."""
    rows = f"(FROM {table} WHERE run_id = {context.run_literal})"
    found = context.query_once(f"SELECT count(*) AS rows, min(index) AS low, max(index) AS high FROM {rows}")[0]
    if not found["rows"]:
        return True
    if found["low"] < 0 or found["high"] >= _SPARSE * found["rows"]:
        return False
    different = distinct_indices(found["high"] + 1)
    passes = context.rows(f"SELECT count(*) AS rows, {different} AS indices FROM {rows} GROUP BY epoch, visit")
    return all(one["rows"] == one["indices"] for one in passes)
