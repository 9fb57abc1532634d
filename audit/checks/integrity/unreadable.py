"""`unreadable`: samples that could not be read or transformed."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context

#: One reason: the stage, and the error without what differs from sample to sample (numbers, and names in quotes).
_CAUSE = "failed_stage || ': ' || regexp_replace(error, '[0-9]+|''[^'']*''|\"[^\"]*\"', '#', 'g')"


class Unreadable(Check):
    """Report each failed sample with the stage where it failed."""

    description = "Samples that could not be read or transformed, with the stage and the error."
    question = "Which samples failed?"
    rule = "their rows are listed"
    options = settings(max_failed=Option(0, "How many samples may fail."))

    def run(self, context: Context) -> Iterable[Finding]:
        if not context.run.failed:
            return
        query = f"SELECT index, source, failed_stage, error FROM {context.samples} WHERE status = 'failed'"
        failed = context.value(f"SELECT count(*) FROM ({query})")
        if failed <= context.options["max_failed"]:
            context.note(f"{failed:,} failed, {context.options['max_failed']:,} allowed")
            return
        numbers = {stage.name: stage.stage for stage in reversed(context.facts.stages)}
        for row in context.offenders_by_cause(query, _CAUSE, "failed_stage = 'load'"):
            others = f" and {row['others']:,} others" if row["others"] else ""
            yield Finding(
                f"{row['source']} (index {row['index']}){others} failed at {row['failed_stage']}: {row['error']}",
                index=row["index"],
                source=row["source"],
                stage=numbers.get(row["failed_stage"]),
                sql=query if row["others"] else context.evidence("failures", row["index"]),
            )
