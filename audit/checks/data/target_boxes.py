"""`target_boxes`: target boxes that are empty, reversed, outside their picture, or in another format."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context

#: Target boxes of each visit, with the size of the last picture or tensor that its stages made.
_BOXES = """
    WITH sizes AS (
        SELECT epoch, index, visit, arg_max(CASE kind
                   WHEN 'image' THEN struct_pack(high := shape[1], wide := shape[2])
                   ELSE struct_pack(high := shape[2], wide := shape[3]) END, stage) AS size
        FROM stage_outputs
        WHERE (kind = 'image' AND len(shape) >= 2) OR (kind = 'tensor' AND len(shape) = 3 AND shape[1] IN (1, 3, 4))
        GROUP BY epoch, index, visit
    )
    SELECT b.*, s.source, z.size.high AS high, z.size.wide AS wide,
           NOT isfinite(x1 + y1 + x2 + y2) OR x2 <= x1 OR y2 <= y1 AS is_broken,
           x1 < -{slack} OR y1 < -{slack} OR x2 > z.size.wide + {slack} OR y2 > z.size.high + {slack} AS is_outside
    FROM boxes b JOIN samples s USING (run_id, epoch, index, visit) LEFT JOIN sizes z USING (epoch, index, visit)
    WHERE b.kind = 'target' AND b.call = 0
"""


class TargetBoxes(Check):
    """Compare target boxes with the size of the picture that the model was given."""

    description = "Target boxes have a size, lie inside their picture, and are x1, y1, x2, y2."
    options = settings(
        slack=Option(1.0, "Let a box reach this many pixels over the border."),
        reversed=Option(0.2, "Take this share of boxes that end before they begin for another format."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        if not context.facts.counts.get("boxes"):
            raise Skip("The run has no target boxes.")
        query = _BOXES.format(slack=float(context.options["slack"]))
        counts = context.rows(
            "SELECT count(*) AS boxes, count(*) FILTER (x2 < x1 OR y2 < y1) AS reversed, "
            "count(*) FILTER (is_broken) AS broken, count(*) FILTER (is_outside AND NOT is_broken) AS outside "
            f"FROM ({query})"
        )[0]
        if not counts["boxes"]:
            raise Skip("The run has no target boxes.")
        share = counts["reversed"] / counts["boxes"]
        if share >= context.options["reversed"]:
            yield Finding(
                f"{counts['reversed']:,} of {counts['boxes']:,} target boxes end before they begin: they look like x, y, "
                "width, height, and not like x1, y1, x2, y2.",
                value=share,
                threshold=context.options["reversed"],
                sql=f"FROM ({query}) WHERE x2 < x1 OR y2 < y1",
            )
            return
        for column, says in (
            ("is_broken", "has no size or is not finite"),
            ("is_outside", "lies outside of its picture"),
        ):
            condition = column if column == "is_broken" else "is_outside AND NOT is_broken"
            chosen = f"FROM ({query}) WHERE {condition}"
            for row in context.rows(f"SELECT * {chosen} ORDER BY index, box LIMIT 100"):
                corners = ", ".join(f"{row[name]:g}" for name in ("x1", "y1", "x2", "y2"))
                size = f" of {row['wide']} × {row['high']} pixels" if column == "is_outside" else ""
                yield Finding(
                    f"{row['source']}: target box {row['box']} ({corners}) {says}{size}.",
                    index=row["index"],
                    source=row["source"],
                    sql=chosen,
                )
