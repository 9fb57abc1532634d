"""`missed_by_size`: a detector misses objects of one size far more often than the others."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.significance import holm, two_rates

_SIZES = """
    SELECT CASE WHEN area < 1024 THEN 'small' WHEN area < 9216 THEN 'medium' ELSE 'large' END AS size,
           count(*) AS objects, count(*) FILTER (outcome = 'fn') AS missed, sum(count(*)) OVER () AS every,
           sum(count(*) FILTER (outcome = 'fn')) OVER () AS every_missed
    FROM (SELECT * REPLACE (coalesce(area, (x2 - x1) * (y2 - y1)) AS area) FROM boxes WHERE kind = 'target' AND call = 0 AND outcome IS NOT NULL)
    GROUP BY 1 ORDER BY missed / objects DESC
"""


class MissedBySize(Check):
    """Compare how often objects are missed, by COCO's sizes: below 32², below 96², and larger."""

    severity = "warning"
    description = "A detector does not miss objects of one size far more often than the others."
    question = "Are objects of one size missed more often?"
    statistic = "two rates (z test), Holm over the sizes, and a difference of at least 30 %"
    assumes = "30 objects of the size, and 30 others"
    needs = ("model",)
    options = settings(
        difference=Option(
            0.3, "Report a size if the share of its objects that is missed exceeds that of the others by at least this."
        ),
        objects=Option(30, "Judge a size only if it has at least this many objects, and the others too."),
        significance=Option(0.001, "The probability of any false finding among all sizes (Holm)."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        rows = context.rows(_SIZES)
        if not rows:
            raise Skip("The run has no target boxes.")
        least = context.options["objects"]
        judged = [row for row in rows if min(row["objects"], row["every"] - row["objects"]) >= least]
        if not judged:
            raise Skip(f"no size, or no two of them, have {least} objects; the run has {rows[0]['every']:,}")
        chances = [
            two_rates(row["missed"], row["objects"], row["every_missed"] - row["missed"], row["every"] - row["objects"])
            for row in judged
        ]
        for row, sure in zip(judged, holm(chances, context.options["significance"]), strict=True):
            share = row["missed"] / row["objects"]
            usual = (row["every_missed"] - row["missed"]) / (row["every"] - row["objects"])
            if not sure or share - usual < context.options["difference"]:
                continue
            yield Finding(
                f"{row['missed']:,} of {row['objects']:,} {row['size']} objects are missed ({share:.0%}), but only "
                f"{usual:.0%} of the others.",
                value=share - usual,
                threshold=context.options["difference"],
                sql=_SIZES,
            )
