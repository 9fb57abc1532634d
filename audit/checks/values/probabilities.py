"""`probabilities`: they add up to 1, lie between 0 and 1, and softmax was applied once."""

from __future__ import annotations

import math
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.checks.shared.files import spread_evenly

#: At most so many predictions are looked at for a second softmax, evenly chosen.
_MOST_LOOKED_AT = 20_000


class Probabilities(Check):
    """Check sums and ranges, and report a second softmax after a model that ends in one."""

    description = "Probabilities lie in 0–1 and add up to 1, confidence is the largest, and softmax was applied once."
    question = "Was softmax applied twice, or over the batch?"
    statistic = (
        "none: the outputs of each class add up to 1 in each call of the model; in 99.5 % of the rows the largest is "
        "at most e times the smallest, what went into the softmax adds up to 1 with nothing below 0, and many rows are "
        "near that limit"
    )
    assumes = "a model that is sure of some samples"
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
        found = (
            [*_find_double_softmax(context), *_find_softmax_of_batch(context)]
            if context.run.output in (None, "logits")
            else []
        )
        yield from found or ([] if alone else _find_squeezed(context))


def _find_double_softmax(context: Context) -> Iterable[Finding]:
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


def _find_softmax_of_batch(context: Context) -> Iterable[Finding]:
    """Report a softmax over the samples of a batch instead of over the classes: the outputs of each class add up to 1 in each call."""
    outputs = f"(FROM {context.predictions} WHERE len(logits) > 1 AND isfinite(list_sum(logits)))"
    query = (
        "SELECT epoch, step, class, sum(output) AS sum, count(*) AS rows FROM (SELECT epoch, step, unnest(range(len(logits))) AS class, "
        f"unnest(logits) AS output FROM {outputs}) GROUP BY epoch, step, class HAVING count(*) > 1"
    )
    within = context.rows(
        f"SELECT count(*) AS rows, bool_and(list_min(logits) >= 0 AND list_max(logits) <= 1) AS inside FROM {outputs}"
    )[0]
    if within["rows"] < 10 or not within["inside"]:
        return
    found = context.rows(f"SELECT count(*) AS sums, avg((abs(sum - 1) < 0.001)::INT) AS share FROM ({query})")[0]
    if found["sums"] >= 10 and found["share"] > 0.9:
        yield Finding(
            "The softmax goes over the samples of a batch instead of over the classes: the outputs of each class add up to 1 in each call "
            "of the model, and those of a sample do not. Use softmax(dim=1).",
            value=found["share"],
            sql=query,
        )


def _find_squeezed(context: Context) -> Iterable[Finding]:
    """Report probabilities that look like the softmax of probabilities: no two of a row differ by more than the factor e.

    What went into the softmax can be computed, up to a constant, which follows from a sum of 1: it is then a row of
    probabilities too. A model that is unsure by itself gives no rows near the limit, or some beyond it.
    """
    total = context.facts.counts.get("predictions", 0)
    chosen = f" AND {spread_evenly(_MOST_LOOKED_AT, total)}" if total > _MOST_LOOKED_AT else ""
    query = (
        "SELECT len(p) AS classes, list_max(p) / list_min(p) AS ratio, "
        "ln(list_min(p)) + (1 - list_sum(list_transform(p, lambda x: ln(x)))) / len(p) AS least, list_max(p) AS high "
        f"FROM (SELECT probabilities AS p FROM {context.predictions} WHERE len(probabilities) > 1 "
        f"AND list_min(probabilities) > 1e-6 AND list_max(probabilities) <= 1{chosen})"
    )
    query = (
        "SELECT count(*) AS rows, max(classes) AS classes, max(high) AS high, "
        f"avg((ratio <= {math.e * 1.002} AND least >= -0.003)::INT) AS inside, "
        f"avg((ratio >= {math.e * 0.9})::INT) AS near, avg((ratio >= {math.e * 0.98})::INT) AS nearest FROM ({query})"
    )
    row = context.rows(query)[0]
    if row["rows"] < 20 or row["inside"] < 0.995:
        return
    # Two classes leave less to recognise it by.
    if (row["near"] >= 0.1 and row["classes"] > 2) or row["nearest"] >= 0.3:
        yield Finding(
            f"A softmax was applied twice: no probability exceeds {row['high']:.3f}, the largest possible of {row['classes']} classes is "
            f"{math.e / (math.e + row['classes'] - 1):.3f}, and in {row['near']:.0%} of the rows the largest is 2.4 to 2.7 times the "
            "smallest. Every confidence and loss is wrong.",
            value=row["high"],
            threshold=math.e / (math.e + row["classes"] - 1),
            sql=query,
        )
