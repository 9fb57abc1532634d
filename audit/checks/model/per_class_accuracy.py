"""`per_class_accuracy`: a class that is far worse than the rest, hidden by a good mean."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist

from audit.checks.base import CAUSES_OF_ERRORS, Check, Finding, Option, settings
from audit.checks.context import Context


class PerClassAccuracy(Check):
    """Report a class if even the upper end of its 95 % confidence interval is too low."""

    description = "Classes whose accuracy is below `min`, or far below the accuracy of all."
    severity = "warning"
    follows = (*CAUSES_OF_ERRORS, "class_regressions")
    needs = ("model", "labels")
    options = settings(
        min=Option(None, "The accuracy of every class must be at least this.", kind=float),
        max_gap=Option(0.3, "A class may be this much below the accuracy of all."),
        samples=Option(5, "Check only classes with at least this many samples."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        query = (
            "SELECT label, any_value(label_name) AS label_name, count(*) AS samples, avg(correct::INT) AS accuracy, "
            f"sum(sum(correct::INT)) OVER () / sum(count(*)) OVER () AS overall FROM {context.judged_predictions} "
            "WHERE correct IS NOT NULL GROUP BY label ORDER BY accuracy, label"
        )
        rows = context.rows(query)
        # Of a thousand classes, fifty lie outside of their 95 % intervals; so the interval is wider with more classes.
        z = NormalDist().inv_cdf(1 - 0.025 / max(1, len(rows)))
        for row in rows:
            wanted = context.options["min"]
            limit = wanted if wanted is not None else row["overall"] - context.options["max_gap"]
            judged = row["accuracy"] if wanted is not None else _upper(row["accuracy"], row["samples"], z)
            if row["samples"] >= context.options["samples"] and judged < limit:
                yield Finding(
                    f"The class {row['label_name'] or row['label']} is right in {row['accuracy']:.1%} of "
                    f"{row['samples']:,} samples; all are in {row['overall']:.1%}.",
                    value=row["accuracy"],
                    threshold=limit,
                    sql=f"SELECT index, source, predicted_name, confidence FROM lineage WHERE run_id = "
                    f"{context.run_literal} AND label = {row['label']} AND NOT correct ORDER BY confidence DESC",
                )


def _upper(share: float, count: int, z: float) -> float:
    """Return the upper end of Wilson's confidence interval."""
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (centre + spread) / (1 + z * z / count)
