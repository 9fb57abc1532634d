"""`target_masks`: masks of another size than what the model gave, or with classes that do not exist."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Skip
from audit.checks.context import Context


class TargetMasks(Check):
    """Compare target masks with the predicted ones and with the list of classes."""

    description = "Target masks have the size of the model's output, and only classes that exist."

    def run(self, context: Context) -> Iterable[Finding]:
        if not context.rows("SELECT 1 AS found FROM masks WHERE kind = 'target' LIMIT 1"):
            raise Skip("The run has no target masks.")
        yield from self._sizes(context)
        yield from self._classes(context)

    def _sizes(self, context: Context) -> Iterable[Finding]:
        query = (
            "SELECT s.index, s.source, t.width, t.height, p.width AS given_width, p.height AS given_height "
            "FROM masks t JOIN masks p USING (run_id, epoch, index, visit, call) "
            "JOIN samples s USING (run_id, epoch, index, visit) "
            "WHERE t.kind = 'target' AND p.kind = 'predicted' AND (t.width, t.height) <> (p.width, p.height) "
            "AND call = 0 ORDER BY s.index LIMIT 100"
        )
        for row in context.rows(query):
            yield Finding(
                f"{row['source']}: the target mask is {row['width']} × {row['height']} pixels and the predicted one "
                f"{row['given_width']} × {row['given_height']}: it was not graded.",
                index=row["index"],
                source=row["source"],
                sql=query,
            )

    def _classes(self, context: Context) -> Iterable[Finding]:
        if context.run.classes is None:
            return
        known = len(context.run.classes)
        query = (
            "SELECT s.index, s.source, m.class, m.target_pixels FROM mask_scores m "
            "JOIN samples s USING (run_id, epoch, index, visit) "
            f"WHERE m.call = 0 AND m.target_pixels > 0 AND (m.class >= {known} OR m.class < 0) "
            "ORDER BY s.index, m.class LIMIT 100"
        )
        for row in context.rows(query):
            yield Finding(
                f"{row['source']}: the target mask has {row['target_pixels']:,} pixels of class {row['class']}, but there "
                f"are {known} classes.",
                index=row["index"],
                source=row["source"],
                value=row["class"],
                threshold=known - 1,
                sql=query,
            )
