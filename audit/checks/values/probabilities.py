"""`probabilities`: they add up to 1, lie between 0 and 1, and softmax was applied once."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context


class Probabilities(Check):
    """Check sums and ranges, and report a second softmax after a model that ends in one."""

    description = "Probabilities lie in 0–1 and add up to 1, confidence is the largest, and softmax was applied once."
    needs = ("model",)
    options = settings(tolerance=Option(0.001, "How far a sum may be from 1."))

    def run(self, context: Context) -> Iterable[Finding]:
        tolerance = context.options["tolerance"]
        # Scores of classes that do not exclude each other do not add up to 1.
        alone = context.run.output in ("sigmoid", "multilabel")
        query = (
            "SELECT index, epoch, visit, list_sum(probabilities) AS sum, list_min(probabilities) AS low, "
            f"list_max(probabilities) AS high, confidence FROM {context.all_predictions} "
            "WHERE len(probabilities) > 0 AND isfinite(list_sum(probabilities))"
        )
        query = (
            f"FROM ({query}) WHERE {'false' if alone else f'abs(sum - 1) > {tolerance}'} OR low < -{tolerance} "
            f"OR high > 1 + {tolerance} OR abs(confidence - high) > {tolerance}"
        )
        for row in context.offenders(query):
            if not alone and abs(row["sum"] - 1) > tolerance:
                said, value, threshold = f"add up to {row['sum']:.4g}", row["sum"], 1.0
            elif row["low"] < -tolerance or row["high"] > 1 + tolerance:
                said, value, threshold = f"reach from {row['low']:.4g} to {row['high']:.4g}", row["high"], 1.0
            else:
                said = f"have the largest {row['high']:.4g}, but the confidence is {row['confidence']:.4g}"
                value, threshold = row["confidence"], row["high"]
            yield Finding(
                f"The probabilities of {row['source']} (index {row['index']}) {said}.",
                index=row["index"],
                source=row["source"],
                value=value,
                threshold=threshold,
                sql=context.evidence("predictions", row["index"]),
            )
        if context.run.output in (None, "logits"):
            yield from _twice(context)


def _twice(context: Context) -> Iterable[Finding]:
    query = (
        "SELECT count(*) AS rows, avg((abs(list_sum(logits) - 1) < 0.001 AND list_min(logits) >= 0)::INT) AS share "
        f"FROM {context.predictions} WHERE len(logits) > 1 AND isfinite(list_sum(logits))"
    )
    row = context.rows(query)[0]
    if row["rows"] >= 10 and row["share"] > 0.99:
        yield Finding(
            "The model already returns probabilities: each row lies in 0–1 and adds up to 1. A "
            "second softmax flattens them, so every confidence and loss is wrong.",
            value=row["share"],
            sql=query,
        )
