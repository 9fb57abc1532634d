"""Whether two sets of rows are the same, told in one pass over each: a join of millions only to find nothing is dear.

Equal fingerprints are taken for equal rows: the sum of 64-bit hashes agrees by chance once in 2**64.
"""

from __future__ import annotations

from audit.checks.context import Context

#: What names a visit in every table.
VISIT = "epoch, index, visit"


def fingerprint(columns: str) -> str:
    """SQL of an aggregate over rows, whatever their order: their number, and the sum of their hashes."""
    # Hashed twice: DuckDB joins the hashes of several columns so simply that columns exchanged between rows cancel out.
    return f"{{rows: count(*), sum: sum(hash(hash({columns})))}}"


def same(context: Context, columns: str, rows: str, others: str, other_columns: str | None = None) -> bool:
    """Whether two relations hold the same rows, as many times each."""
    found, expected = (
        context.value(f"SELECT {fingerprint(names)} FROM {relation}")
        for names, relation in ((columns, rows), (other_columns or columns, others))
    )
    return bool(found == expected)
