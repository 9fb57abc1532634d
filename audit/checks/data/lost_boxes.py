"""`lost_boxes`: a stage of a joint transform loses objects, or cuts off most of them."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.significance import binomial_tail, wilson

#: For each stage of each visit: objects before it, how many of them it lost, and how many of those left it cut.
_STEPS = """
    WITH joint AS (
        SELECT epoch, index, visit, stage, name, params, (target -> '$.boxes')::DOUBLE[][] AS boxes,
               (target -> '$.height')::DOUBLE * (target -> '$.width')::DOUBLE AS pixels
        FROM stage_outputs WHERE target IS NOT NULL AND (target -> '$.boxes') IS NOT NULL
    ), sized AS (
        SELECT *, list_transform(boxes, lambda b: greatest(b[3] - b[1], 0) * greatest(b[4] - b[2], 0)) AS areas FROM joint
    ), steps AS (
        SELECT *, lag(areas) OVER (PARTITION BY epoch, index, visit ORDER BY stage) AS before,
               CASE WHEN contains(name, 'ResizedCrop')
                    THEN (params -> '$.height')::DOUBLE * (params -> '$.width')::DOUBLE / pixels
                    WHEN contains(name, 'Crop') THEN 1.0 END AS scale
        FROM sized
    )
    SELECT epoch, index, visit, stage, name, len(list_filter(before, lambda a: a > 0)) AS objects,
           greatest(objects - len(list_filter(areas, lambda a: a > 0)), 0) AS lost,
           CASE WHEN scale IS NOT NULL AND len(areas) = len(before)
                THEN len(list_filter(list_zip(areas, before),
                                     lambda p: p[1] > 0 AND p[2] > 0 AND p[1] * scale < {least} * p[2]))
                ELSE 0 END AS cut
    FROM steps WHERE before IS NOT NULL
"""

#: The probability of so many lost objects if no more than the allowed share is lost.
_CHANCE_LIMIT = 0.001


class LostBoxes(Check):
    """Compare the target boxes before and after each stage that takes them together with the picture."""

    severity = "warning"
    description = "Crops and other joint transforms keep the objects of a picture, and most of each."
    question = "Do random stages keep the objects?"
    statistic = "the share of objects that a stage loses or cuts, against 10 %: exact binomial tail below 0.1 %"
    assumes = "objects are independent"
    options = settings(
        share=Option(0.1, "Report a stage that loses or cuts more than this share of the objects."),
        least=Option(0.25, "Count an object as cut if a crop leaves less than this share of its area."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        targets = f"SELECT 1 FROM stage_outputs WHERE run_id = {context.run_literal} AND target IS NOT NULL LIMIT 1"
        if not context.rows(targets):
            raise Skip("No stage returns a picture together with its boxes.")
        query = _STEPS.format(least=float(context.options["least"]))
        rows = context.rows(
            "SELECT stage, any_value(name) AS name, sum(objects)::BIGINT AS objects, sum(lost)::BIGINT AS lost, "
            f"sum(cut)::BIGINT AS cut FROM ({query}) GROUP BY stage ORDER BY stage"
        )
        if not rows:
            raise Skip("No stage returns a picture together with its boxes.")
        for row in rows:
            share = (row["lost"] + row["cut"]) / row["objects"] if row["objects"] else 0.0
            # Crops are random: of few objects, many are lost by chance.
            found, limit = row["lost"] + row["cut"], context.options["share"]
            if share <= limit or (0 < limit < 1 and binomial_tail(found, row["objects"], limit) >= _CHANCE_LIMIT):
                continue
            low, high = wilson(found, row["objects"])
            yield Finding(
                f"{row['name']} loses {row['lost']:,} of {row['objects']:,} objects and leaves less than "
                f"{context.options['least']:.0%} of {row['cut']:,} others: "
                f"{share:.0%} (95 % interval {low:.0%} to {high:.0%}).",
                stage=row["stage"],
                value=share,
                threshold=context.options["share"],
                sql=f"FROM ({query}) WHERE stage = {int(row['stage'])} AND lost + cut > 0",
            )
