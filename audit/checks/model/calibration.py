"""`calibration`: confidence that does not match accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context


class Calibration(Check):
    """Compute the expected calibration error over equal bins, less the error that chance alone causes."""

    name = "calibration"
    group = "model"
    description = "Of predictions with 90 % confidence, 90 % should be right: the expected calibration error is small."
    severity = "warning"
    needs = ("model", "labels")
    options = settings(
        max=Option(0.1, "The largest expected calibration error that is allowed."),
        bins=Option(15, "The number of confidence bins."),
        samples=Option(100, "Check only if at least this many samples are graded."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        bins = max(1, context.options["bins"])
        query = (
            f"SELECT least(floor(confidence * {bins}), {bins - 1})::INT AS bin, count(*) AS samples, "
            f"avg(confidence) AS confidence, avg(correct::INT) AS accuracy FROM {context.predictions} "
            "WHERE correct IS NOT NULL AND confidence IS NOT NULL GROUP BY bin ORDER BY bin"
        )
        rows = context.rows(query)
        total = sum(row["samples"] for row in rows)
        if total < context.options["samples"]:
            raise Skip(f"only {total} samples were graded")
        gap = sum(row["samples"] * abs(row["accuracy"] - row["confidence"]) for row in rows) / total
        # A bin of n samples deviates by about sqrt(p(1-p)/n) by chance alone.
        noise = (
            sum(
                math.sqrt(2 / math.pi * max(row["confidence"] * (1 - row["confidence"]), 0) * row["samples"])
                for row in rows
            )
            / total
        )
        context.note(f"expected calibration error {gap:.3f}")
        if gap - noise > context.options["max"]:
            sure = sum(row["samples"] * (row["confidence"] - row["accuracy"]) for row in rows)
            yield Finding(
                f"The expected calibration error is {gap:.3f}: the model is {'over' if sure > 0 else 'under'}confident.",
                value=gap,
                threshold=context.options["max"],
                sql=query,
            )


CHECK = Calibration
