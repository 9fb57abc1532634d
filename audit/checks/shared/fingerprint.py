"""Whether two sets of rows are the same, told in one pass over each: a join of millions only to find nothing is dear.

Equal fingerprints are taken for equal rows: the sum of 64-bit hashes agrees by chance once in 2**64.
"""

from __future__ import annotations

from typing import Any

from audit.checks.context import Context

#: What names a visit in every table.
VISIT = "epoch, index, visit"
#: Bits that DuckDB holds at most for one group, and that are worth it for each row.
_MOST_BITS, _SPARSE = 1_000_000_000, 64


def fingerprint(columns: str) -> str:
    """SQL of an aggregate over rows, whatever their order: their number, and the sum of their hashes."""
    # Hashed twice: DuckDB joins the hashes of several columns so simply that columns exchanged between rows cancel out.
    return f"{{rows: count(*), sum: sum(hash(hash({columns})))}}"


def fingerprints(context: Context, columns: str, rows: str, group: str = "true") -> list[Any]:
    """That of each group of the rows; a query that several checks ask is run once."""
    found = context.cached(f"SELECT {fingerprint(columns)} AS found FROM {rows} GROUP BY {group}")
    return [row["found"] for row in found]


def same(context: Context, columns: str, rows: str, others: str, other_columns: str | None = None) -> bool:
    """Whether two relations hold the same rows, as many times each."""
    return fingerprints(context, columns, rows) == fingerprints(context, other_columns or columns, others)


def distinct_indices(length: int) -> str:
    """SQL of an aggregate: how many different indices below a length there are, for which it holds a bit each."""
    return (
        f"coalesce(bit_count(bitstring_agg(index, 0, {length - 1}) FILTER (index BETWEEN 0 AND {length - 1})), 0)"
        if 0 < length <= _MOST_BITS
        else f"count(DISTINCT index) FILTER (index BETWEEN 0 AND {length - 1})"
    )


def unique_visits(context: Context, table: str) -> bool:
    """Whether no visit has two rows in a table, as far as that can be told with a bit for each index; False if not."""
    rows = f"(FROM {table} WHERE run_id = {context.run_literal})"
    found = context.cached(f"SELECT count(*) AS rows, min(index) AS low, max(index) AS high FROM {rows}")[0]
    if not found["rows"]:
        return True
    if found["low"] < 0 or found["high"] >= _SPARSE * found["rows"]:
        return False
    different = distinct_indices(found["high"] + 1)
    passes = context.rows(f"SELECT count(*) AS rows, {different} AS indices FROM {rows} GROUP BY epoch, visit")
    return all(one["rows"] == one["indices"] for one in passes)
