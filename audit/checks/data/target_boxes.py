"""`target_boxes`: target boxes that are empty, reversed, outside their picture, or in another format."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.target_pairs import PICTURE_SIZES

#: Target boxes of each visit, with the size of the last picture or tensor that its stages made.
_BOXES = f"""
    WITH sizes AS ({PICTURE_SIZES})
    SELECT b.*, s.source, z.size.high AS high, z.size.wide AS wide,
           NOT isfinite(x1 + y1 + x2 + y2) OR x2 <= x1 OR y2 <= y1 AS is_broken,
           x1 < -{{slack}} OR y1 < -{{slack}} OR x2 > z.size.wide + {{slack}} OR y2 > z.size.high + {{slack}} AS is_outside
    FROM boxes b JOIN samples s USING (run_id, epoch, index, visit) LEFT JOIN sizes z USING (epoch, index, visit)
    WHERE b.kind = 'target' AND b.call = 0
"""


#: Boxes of pictures that are smaller than this may lie between 0 and 1 in pixels.
_LARGER = 16


class TargetBoxes(Check):
    """Compare target boxes with the size of the picture that the model was given."""

    description = (
        "Target boxes have a size, lie inside their picture, are x1, y1, x2, y2 in pixels, and are there once."
    )
    question = "Are targets possible?"
    rule = "corners, sizes, classes and areas before and after each stage"
    options = settings(
        slack=Option(1.0, "A box may reach this many pixels beyond the border."),
        reversed=Option(0.2, "Report another box format if at least this share of the boxes ends before it begins."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        if not context.facts.counts.get("boxes"):
            raise Skip("The run has no target boxes.")
        query = _BOXES.format(slack=float(context.options["slack"]))
        counts = context.rows(
            "SELECT count(*) AS boxes, count(*) FILTER (x2 < x1 OR y2 < y1) AS reversed, "
            "count(*) FILTER (is_broken) AS broken, count(*) FILTER (is_outside AND NOT is_broken) AS outside, "
            f"max(greatest(x2, y2)) <= 1 AND min(least(wide, high)) >= {_LARGER} AS is_relative "
            f"FROM ({query})"
        )[0]
        if not counts["boxes"]:
            raise Skip("The run has no target boxes.")
        if counts["is_relative"]:
            yield Finding(
                f"All {counts['boxes']:,} target boxes lie between 0 and 1: they are shares of the width and height, and not pixels.",
                value=counts["boxes"],
                sql=query,
            )
            return
        yield from self._find_repeated(context, query)
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

    def _find_repeated(self, context: Context, query: str) -> Iterable[Finding]:
        """Report target boxes that a picture has several times."""
        repeated = (
            "SELECT index, any_value(source) AS source, class, x1, y1, x2, y2, count(*) AS times "
            f"FROM ({query}) WHERE NOT is_broken GROUP BY epoch, index, visit, class, x1, y1, x2, y2 HAVING count(*) > 1"
        )
        for row in context.offenders(repeated):
            corners = ", ".join(f"{row[name]:g}" for name in ("x1", "y1", "x2", "y2"))
            yield Finding(
                f"{row['source']}: a target box of class {row['class']} ({corners}) occurs {row['times']} times.",
                index=row["index"],
                source=row["source"],
                value=row["times"],
                threshold=1,
                sql=repeated,
                severity="warning",
            )
