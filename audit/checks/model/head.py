"""`head`: the model has more or fewer outputs than there are classes, or predicts nearly always one class."""

from __future__ import annotations

import math
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.checks.shared.renumbered_labels import why_not_judged
from audit.checks.shared.significance import wilson

#: If more than this share of the predictions is right, labels and outputs have the same order.
_AGREES = 0.5


class Head(Check):
    """Count the recorded outputs; do not read the checkpoint."""

    description = "The model has one output for each class, and does not predict one class for nearly everything."
    question = "Do outputs and classes fit?"
    rule = (
        "the number of outputs against classes and labels; one class that is predicted for 95 % of at least 30 samples"
    )
    needs = ("model",)
    options = settings(
        share=Option(0.95, "Report a class that is predicted for at least this share of the samples."),
        samples=Option(30, "Check the share only if there are at least this many samples."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        if reason := why_not_judged(context):
            context.note(f"the outputs were not compared with the classes: {reason}")
        else:
            yield from self._outputs(context)
        yield from self._find_collapse(context)

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
        what = (
            "some outputs belong to no class of the dataset"
            if outputs > len(classes)
            else "some classes have no output"
        )
        graded = context.rows(
            f"SELECT count(correct) AS graded, count(*) FILTER (correct) AS right FROM {context.predictions}"
        )[0]
        # A model that is mostly right knows these classes by these numbers: it is evaluated on some of its classes.
        agrees = outputs > len(classes) and wilson(graded["right"], graded["graded"])[0] > _AGREES
        yield Finding(
            f"The model has {outputs} outputs and the dataset {len(classes)} classes: {what}."
            + (" Its predictions fit the labels, so the outputs of these classes are in place." if agrees else ""),
            value=outputs,
            threshold=len(classes),
            sql=query,
            severity="warning" if agrees else None,
        )

    def _find_collapse(self, context: Context) -> Iterable[Finding]:
        query = (
            "SELECT predicted, any_value(predicted_name) AS name, count(*) AS samples, "
            "count(*) FILTER (label = predicted) AS labelled, sum(count(*)) OVER () AS total, "
            "(SELECT count(*) FILTER (label IS NOT NULL) FROM "
            f"{context.predictions}) AS labels FROM {context.predictions} "
            "WHERE predicted IS NOT NULL GROUP BY predicted ORDER BY samples DESC LIMIT 1"
        )
        for row in context.rows(query):
            total, share = row["total"], row["samples"] / row["total"]
            if total < context.options["samples"]:
                least = context.options["samples"]
                context.note(
                    f"{total} predictions are too few to judge whether the model predicts one class for all; {least} are needed"
                )
                continue
            if share < context.options["share"]:
                continue
            # If nearly all labels are of that class, correct predictions are too.
            right = row["labelled"] / row["labels"] if row["labels"] else 0.0
            if not row["labels"] or share - right < max(0.1, 3 * math.sqrt(right * (1 - right) / total)):
                continue
            yield Finding(
                f"The model predicts {row['name'] or row['predicted']} for {share:.0%} of {total:,} samples, "
                f"but only {right:.0%} of them have that label.",
                value=share,
                threshold=context.options["share"],
                sql=query,
            )
