"""`stage_coverage`: every change of a value between its source and the model was seen as a stage."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Skip
from audit.checks.context import Context
from audit.records import is_about_files

_PICTURES = r"(?i)\.(png|jpe?g|bmp|gif|webp|tiff?|ppm)$"


class StageCoverage(Check):
    """A trace that begins with the finished tensor explains nothing."""

    description = "Every change of a value between its source and the model was seen as a stage."
    question = "Did audit see all that was done to a sample?"
    rule = "what the recorder could not observe is listed"

    def run(self, context: Context) -> Iterable[Finding]:
        if context.run.unrecorded is None:
            raise Skip("the recording did not look for changes that no stage explains")
        # Of samples in memory nothing is lost between a file and the model.
        has_files = any(row["file"] is not None for row in context.facts.epochs)
        for text in context.run.unrecorded:
            if is_about_files(text):
                continue
            yield Finding(
                f"Not recorded: {text}.",
                sql=f"SELECT unrecorded FROM runs WHERE run_id = {context.run_literal}",
                severity=None if has_files else "warning",
            )
        finished = f"""
            SELECT index, any_value(source) AS source, count(*) OVER () AS visits
            FROM {context.outputs} JOIN {context.samples} USING (run_id, epoch, index, visit)
            WHERE regexp_matches(source, '{_PICTURES}')
            GROUP BY run_id, epoch, index, visit
            HAVING count(*) = 1 AND any_value(kind) = 'tensor'
            ORDER BY index LIMIT 1
        """
        for row in context.rows(finished):
            yield Finding(
                f"{row['visits']:,} visits have no stage but `load`, which is already the finished tensor: "
                f"{row['source']} is the first.",
                index=row["index"],
                source=row["source"],
                stage=0,
                value=row["visits"],
            )
