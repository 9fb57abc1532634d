"""`per_class_accuracy`: a class that is far worse than the rest, hidden by a good mean."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import TypedDict

from audit.checks.base import CAUSES_OF_ERRORS, Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.significance import wilson


class ClassAccuracy(TypedDict):
    """The accuracy of one class, and of all samples."""

    label: int | None
    label_name: str | None
    samples: int
    accuracy: float
    overall: float


class PerClassAccuracy(Check):
    """Report a class if even the upper end of its 95 % confidence interval is too low."""

    description = "Classes whose accuracy is below `min`, or far below the accuracy of all."
    question = "Is one class much worse than all?"
    statistic = "Wilson's 95 % interval of its accuracy, with Bonferroni's correction for the number of classes"
    assumes = "independent samples"
    severity = "warning"
    follows = (*CAUSES_OF_ERRORS, "accuracy", "class_regressions")
    needs = ("model", "labels", "same_labels")
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
        rows = context.facts.typed_rows(ClassAccuracy, query)
        # Of a thousand classes, fifty lie outside of their 95 % intervals; so the interval is wider with more classes.
        z = NormalDist().inv_cdf(1 - 0.025 / max(1, len(rows)))
        wanted, gap = context.options["min"], context.options["max_gap"]
        if wanted is None and rows:
            self._require_enough(context, rows, rows[0]["overall"] - gap, z)
        for row in rows:
            limit = wanted if wanted is not None else row["overall"] - gap
            low, high = wilson(round(row["accuracy"] * row["samples"]), row["samples"], z)
            judged = row["accuracy"] if wanted is not None else high
            if row["samples"] >= context.options["samples"] and judged < limit:
                yield Finding(
                    f"The class {row['label_name'] or row['label']} is right in {row['accuracy']:.1%} of "
                    f"{row['samples']:,} samples (interval {low:.1%} to {high:.1%}); of all samples, {row['overall']:.1%} are right.",
                    value=row["accuracy"],
                    threshold=limit,
                    sql=f"SELECT index, source, predicted_name, confidence FROM lineage WHERE run_id = "
                    f"{context.run_literal} AND label = {row['label']} AND NOT correct ORDER BY confidence DESC",
                )

    def _require_enough(self, context: Context, rows: list[ClassAccuracy], limit: float, z: float) -> None:
        """Raise Skip if no class has so many samples that its interval could lie below the limit; note how many have not."""
        if limit <= 0:
            context.note("the accuracy of all samples is so low that no class can be far below it")
            return
        needed = max(context.options["samples"], math.floor(z * z * (1 - limit) / limit) + 1)
        few = sum(row["samples"] < needed for row in rows)
        if few == len(rows):
            most = max(row["samples"] for row in rows)
            raise Skip(f"the largest class has {most:,} samples; at least {needed:,} are needed")
        if few:
            context.note(f"{few:,} of {len(rows):,} classes have fewer than {needed:,} samples")
