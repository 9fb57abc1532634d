"""`missed_by_size`: a detector misses objects of one size far more often than the others."""

from __future__ import annotations

import math
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context

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
    needs = ("model",)
    options = settings(
        difference=Option(0.3, "Report a size of which this share more is missed than of the others."),
        objects=Option(30, "Judge a size only if it has at least this many objects, and the others too."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        rows = context.rows(_SIZES)
        if not rows:
            raise Skip("The run has no target boxes.")
        for row in rows:
            others = row["every"] - row["objects"]
            if min(row["objects"], others) < context.options["objects"]:
                continue
            share, usual = row["missed"] / row["objects"], (row["every_missed"] - row["missed"]) / others
            if not exceeds_chance(share, usual, row["objects"], context.options["difference"]):
                continue
            yield Finding(
                f"{row['missed']:,} of {row['objects']:,} {row['size']} objects are missed ({share:.0%}), but only "
                f"{usual:.0%} of the others.",
                value=share - usual,
                threshold=context.options["difference"],
                sql=_SIZES,
            )


def exceeds_chance(share: float, usual: float, objects: int, difference: float) -> bool:
    """Return whether a share of missed objects exceeds that of the others by the difference, and by three standard errors."""
    return share - usual >= max(difference, 3 * math.sqrt(max(usual * (1 - usual), 0.01) / objects))
