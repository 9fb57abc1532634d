"""`accuracy`: not below the minimum, not below the baseline, and above guessing."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import CAUSES_OF_ERRORS, Check, Finding, Option, settings
from audit.checks.baseline import Baseline
from audit.checks.context import Context
from audit.checks.shared.significance import two_rates, wilson
from audit.checks.shared.source_pairs import pair_by_source
from audit.lineage.diff.mcnemar import p_value


class Accuracy(Check):
    """Compare the accuracy with the minimum, the baseline and always guessing the commonest class."""

    description = "The accuracy is not below `min`, not far below the baseline's, and above always guessing one class."
    question = "Is the accuracy lower than the baseline's?"
    statistic = "McNemar's exact test on the samples that both runs have, else two rates; a note has Wilson's interval"
    assumes = "most sources are in both runs"
    needs = ("model", "labels", "same_labels")
    follows = CAUSES_OF_ERRORS
    options = settings(
        min=Option(None, "The accuracy must not be below this.", kind=float),
        max_drop=Option(0.02, "It must not be lower than the baseline's by more than this."),
        significance=Option(
            0.05, "A drop against the baseline counts only if its probability by chance is below this."
        ),
        samples=Option(50, "Compare with guessing only if at least this many samples are graded."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        query = (
            "SELECT sum(samples)::BIGINT AS graded, sum(hits) / sum(samples) AS accuracy, max(samples) AS commonest, "
            "count(*) AS classes, avg(hits / samples) AS recall, sqrt(sum(1 / samples)) / count(*) AS doubt FROM "
            f"(SELECT label, count(*) AS samples, sum(correct::INT) AS hits FROM {context.judged_predictions} "
            "WHERE correct IS NOT NULL GROUP BY label)"
        )
        row = context.rows(query)[0]
        if not row["graded"]:
            return
        accuracy, guess = row["accuracy"], row["commonest"] / row["graded"]
        low, high = wilson(round(accuracy * row["graded"]), row["graded"])
        of = f" in {context.judged_split}" if context.judged_split is not None else ""
        context.note(f"accuracy {accuracy:.2%} of {row['graded']:,}{of} (95 % interval {low:.1%} to {high:.1%})")
        wanted, baseline = context.options["min"], context.facts.baseline
        if wanted is not None and accuracy < wanted:
            said = f"below the minimum of {wanted:.2%} (95 % interval {low:.1%} to {high:.1%} of {row['graded']:,} samples)"
            yield _make_finding(accuracy, wanted, said, query)
        if baseline is not None and baseline.accuracy is not None:
            least = baseline.accuracy - context.options["max_drop"]
            if accuracy < least and self._is_certain(context, baseline, row["graded"], accuracy):
                said = f"{baseline.accuracy - accuracy:.2%} below the {baseline.accuracy:.2%} of {baseline.name}"
                yield _make_finding(accuracy, least, said, query)
        # With rare classes, a good model may be less accurate than the commonest class alone, but not class by class.
        guessing = accuracy <= guess < 1 and row["recall"] <= 1 / row["classes"] + row["doubt"]
        if wanted is None and row["graded"] >= context.options["samples"] and guessing:
            yield _make_finding(
                accuracy, guess, f"no better than always guessing the commonest class ({guess:.2%})", query
            )

    def _is_certain(self, context: Context, baseline: Baseline, graded: int, accuracy: float) -> bool:
        """Return whether chance does not explain the drop: on the same samples, or else of two independent rates."""
        lost = gained = shared = 0
        for before, now in pair_by_source(context, baseline):
            if before is None or now is None or before.label is None or before.label != now.label:
                continue
            if before.predicted is not None and now.predicted is not None:
                was, is_now = before.predicted == before.label, now.predicted == now.label
                shared, lost, gained = shared + 1, lost + (was and not is_now), gained + (is_now and not was)
        if 2 * shared >= graded:
            chance = p_value(lost, gained)
        else:
            total = sum(baseline.counts.get("label", {}).values()) or graded
            chance = two_rates(round(accuracy * graded), graded, round((baseline.accuracy or 0) * total), total)
        is_certain = bool(chance <= context.options["significance"])
        if not is_certain:
            context.note(f"the drop against {baseline.name} may be chance (p {chance:.2g})")
        return is_certain


def _make_finding(accuracy: float, threshold: float, said: str, query: str) -> Finding:
    return Finding(f"The accuracy is {accuracy:.2%}, {said}.", value=accuracy, threshold=threshold, sql=query)
