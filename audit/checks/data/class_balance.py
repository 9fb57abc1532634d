"""`class_balance`: one class with many times the samples of another."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.store.sql_literal import literal


class ClassBalance(Check):
    """Compare each class with the largest one, split by split."""

    description = "Classes with far fewer samples than the largest one."
    question = "Is a class rare or absent?"
    rule = "the samples of each class are counted; for `missing_classes`, see also the first table"
    severity = "warning"
    needs = ("labels",)
    options = settings(
        ratio=Option(10.0, "The largest class may have this many times the samples of another."),
        samples=Option(50, "Check only splits with at least this many samples."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        query = (
            "SELECT split, label, any_value(label_name) AS label_name, count(*) AS samples, "
            f"max(count(*)) OVER (PARTITION BY split) AS most, sum(count(*)) OVER (PARTITION BY split) AS total "
            f"FROM {context.items} WHERE label >= 0 GROUP BY split, label"
        )
        ratio, least = context.options["ratio"], context.options["samples"]
        small = f"FROM ({query}) WHERE most > {ratio} * samples AND total >= {least}"
        for row in context.offenders(small, "samples, label"):
            times = row["most"] / row["samples"]
            where = f" in the split {row['split']}" if row["split"] else ""
            yield Finding(
                f"The class {row['label_name'] or row['label']} has {row['samples']:,} samples{where}, "
                f"the largest has {row['most']:,} ({times:.0f} times as many).",
                value=times,
                threshold=ratio,
                sql=f"FROM ({query}) WHERE split IS NOT DISTINCT FROM {literal(row['split'])} ORDER BY samples",
            )
