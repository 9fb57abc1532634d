"""`duplicates`: the same bytes under several names.

Where all samples have a split, only copies of the same split are reported: those of several splits are what `leakage` finds.
"""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding
from audit.checks.context import Context
from audit.checks.shared.content import select_alike


class Duplicates(Check):
    """Report every copy but the first, with the name of the first."""

    description = "Samples with exactly the same content as another of their split."
    question = "Does a split have the same content twice, or with different labels?"
    rule = (
        "digests of the sources or of `load` are equal; blank pictures and copies in other splits are left to `blank` "
        "and `leakage`"
    )
    severity = "warning"

    def run(self, context: Context) -> Iterable[Finding]:
        splits = [row["split"] for row in context.facts.epochs]
        apart = len(splits) > 1 and None not in splits
        split = "split, " if apart else ""
        alike = select_alike(context, "count(*) > 1", by=("split",) if apart else ())
        query = (
            "SELECT *, coalesce(min(label) OVER content_rows <> max(label) OVER content_rows, false) AS conflicting "
            f"FROM {alike} WINDOW content_rows AS (PARTITION BY content), same AS (PARTITION BY content, {split}root, source ORDER BY place) "
            # Of several datasets one may be chosen from the other, or both from a third: then one sample has several indices.
            f"QUALIFY place > 1 AND NOT ({context.in_several_datasets} AND row_number() OVER same > 1 "
            "AND (starts_with(source, 'dataset://') OR coalesce(content = source_digest, false)))"
        )
        for row in context.offenders(query, "conflicting, index"):
            yield Finding(
                f"{row['source']} (index {row['index']}) has the same content as {row['first_source']} "
                f"(index {row['first']}).",
                index=row["index"],
                source=row["source"],
                stage=0,
                value=row["copies"],
                threshold=1,
                sql=f"SELECT index, source, label FROM samples WHERE run_id = {context.run_literal} "
                f"AND index IN ({row['first']}, {row['index']})",
                causes=("conflicting_labels",) if row["conflicting"] else (),
            )
