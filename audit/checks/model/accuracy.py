"""`accuracy`: not below the minimum, not below the baseline, and above guessing."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context


class Accuracy(Check):
    """Compare the accuracy with the minimum, the baseline and always guessing the commonest class."""

    name = "accuracy"
    group = "model"
    description = "The accuracy is not below `min`, not far below the baseline's, and above always guessing one class."
    needs = ("model", "labels")
    options = settings(
        min=Option(None, "The accuracy must not be below this.", kind=float),
        max_drop=Option(0.02, "It must not be lower than the baseline's by more than this."),
        samples=Option(50, "Compare with guessing only if at least this many samples are graded."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        query = (
            "SELECT sum(samples)::BIGINT AS graded, sum(hits) / sum(samples) AS accuracy, max(samples) AS commonest, "
            "count(*) AS classes, avg(hits / samples) AS recall, sqrt(sum(1 / samples)) / count(*) AS doubt FROM "
            f"(SELECT label, count(*) AS samples, sum(correct::INT) AS hits FROM {context.predictions} "
            "WHERE correct IS NOT NULL GROUP BY label)"
        )
        row = context.rows(query)[0]
        if not row["graded"]:
            return
        accuracy, guess = row["accuracy"], row["commonest"] / row["graded"]
        context.note(f"accuracy {accuracy:.2%} of {row['graded']:,}")
        wanted, baseline = context.options["min"], context.facts.baseline
        if wanted is not None and accuracy < wanted:
            yield _below(accuracy, wanted, f"below the minimum of {wanted:.2%}", query)
        if baseline is not None and baseline.accuracy is not None:
            least = baseline.accuracy - context.options["max_drop"]
            if accuracy < least:
                said = f"{baseline.accuracy - accuracy:.2%} below the {baseline.accuracy:.2%} of {baseline.name}"
                yield _below(accuracy, least, said, query)
        # With rare classes, a good model may be less accurate than the commonest class alone, but not class by class.
        guessing = accuracy <= guess < 1 and row["recall"] <= 1 / row["classes"] + row["doubt"]
        if wanted is None and row["graded"] >= context.options["samples"] and guessing:
            yield _below(accuracy, guess, f"no better than always guessing the commonest class ({guess:.2%})", query)


def _below(accuracy: float, threshold: float, said: str, query: str) -> Finding:
    return Finding(f"The accuracy is {accuracy:.2%}, {said}.", value=accuracy, threshold=threshold, sql=query)


CHECK = Accuracy
