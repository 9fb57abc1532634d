"""`duplicates`: the same bytes under several names."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding
from audit.checks.content import contents
from audit.checks.context import Context


class Duplicates(Check):
    """Every copy but the first is told, with the name of the first."""

    name = "duplicates"
    group = "data"
    description = "Samples with exactly the same content as another."
    severity = "warning"

    def run(self, context: Context) -> Iterable[Finding]:
        # Only the doubled digests are joined back: a million different ones stay in the first aggregate.
        doubled = (
            f"SELECT content, count(*) AS copies FROM {contents(context)} "
            "WHERE content IS NOT NULL GROUP BY content HAVING count(*) > 1"
        )
        query = (
            "SELECT s.index, s.source, d.copies, s.content, first_value(s.index) OVER alike AS first, "
            "first_value(s.source) OVER alike AS first_source, row_number() OVER alike AS place "
            f"FROM {contents(context)} s JOIN ({doubled}) d USING (content) "
            "WINDOW alike AS (PARTITION BY content ORDER BY s.index, s.epoch, s.visit)"
        )
        for row in context.offenders(f"FROM ({query}) WHERE place > 1"):
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
            )


CHECK = Duplicates
