"""`head`: a model with more or fewer outputs than there are classes, or one output that takes everything."""

from __future__ import annotations

import math
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context


class Head(Check):
    """The outputs are counted where they were recorded; no number is taken from the checkpoint."""

    name = "head"
    group = "model"
    description = "The model has one output for each class, and does not predict one class for nearly everything."
    needs = ("model",)
    options = settings(
        share=Option(0.95, "Told when one class is predicted for this share of the samples."),
        samples=Option(30, "Fewer samples than this say nothing about the share."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        yield from self._outputs(context)
        yield from self._collapsed(context)

    def _outputs(self, context: Context) -> Iterable[Finding]:
        classes = context.run.classes or []
        query = (
            f"SELECT len(probabilities) AS outputs, count(*) AS samples FROM {context.predictions} "
            "WHERE len(probabilities) > 0 GROUP BY 1 ORDER BY 2 DESC"
        )
        rows = context.rows(query)
        if len(classes) < 2 or not rows or rows[0]["outputs"] == len(classes):
            return
        outputs = rows[0]["outputs"]
        what = "outputs that no class of the dataset has" if outputs > len(classes) else "too few outputs for them"
        yield Finding(
            f"The model has {outputs} outputs and the dataset {len(classes)} classes: {what}.",
            value=outputs,
            threshold=len(classes),
            sql=query,
        )

    def _collapsed(self, context: Context) -> Iterable[Finding]:
        query = (
            "SELECT predicted, any_value(predicted_name) AS name, count(*) AS samples, "
            "count(*) FILTER (label = predicted) AS labelled, sum(count(*)) OVER () AS total, "
            "(SELECT count(*) FILTER (label IS NOT NULL) FROM "
            f"{context.predictions}) AS labels FROM {context.predictions} "
            "WHERE predicted IS NOT NULL GROUP BY predicted ORDER BY samples DESC LIMIT 1"
        )
        for row in context.rows(query):
            total, share = row["total"], row["samples"] / row["total"]
            if total < context.options["samples"] or share < context.options["share"]:
                continue
            # Where the labels themselves are nearly all of that class, so are right predictions.
            right = row["labelled"] / row["labels"] if row["labels"] else 0.0
            if not row["labels"] or share - right < max(0.1, 3 * math.sqrt(right * (1 - right) / total)):
                continue
            yield Finding(
                f"The model predicts {row['name'] or row['predicted']} for {share:.0%} of {total:,} samples, "
                f"of which {right:.0%} have that label: one output takes everything.",
                value=share,
                threshold=context.options["share"],
                sql=query,
            )


CHECK = Head
