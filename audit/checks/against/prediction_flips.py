"""`prediction_flips`: sources that the baseline got right and this run gets wrong, or fails on."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.baseline import Baseline, Item
from audit.checks.context import Context
from audit.checks.shared.source_pairs import lookup, pair_by_source
from audit.class_names import identify_class
from audit.store.sql_literal import literal


class PredictionFlips(Check):
    """Compare the runs source by source, because an unchanged mean can hide as many losses as gains."""

    description = (
        "Samples that were right in the baseline and are wrong or fail now (with `any`: every prediction that differs)."
    )
    needs = ("baseline",)
    options = settings(
        max_regressions=Option(0, "How many samples may turn from right to wrong, or newly fail."),
        any=Option(False, "Count every prediction that differs, whether or not it is correct."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        baseline = context.facts.baseline
        assert baseline is not None
        if not context.facts.counts.get("predictions") and context.run.samples > context.run.failed:
            raise Skip("the run has no predictions; record it with --model")
        flips: list[tuple[Item, Item]] = []
        total = compared = predicted = 0
        for before, now in pair_by_source(context, baseline):
            predicted += before is not None and before.predicted is not None
            if before is None or now is None or before.predicted is None or (now.predicted is None and not now.failed):
                continue
            compared += 1
            if self._is_flipped(context, baseline, before, now):
                total += 1
                if len(flips) < context.most:
                    flips.append((before, now))
        if not predicted:
            raise Skip(f"the baseline {baseline.name} has no predictions")
        if not compared:
            yield Finding(
                f"Nothing was compared: no sample of this run has a prediction in {baseline.name}.",
                sql=f"SELECT index, source, predicted FROM lineage WHERE run_id = {context.run_literal}",
            )
            return
        context.note(f"{compared:,} predictions compared")
        if total <= context.options["max_regressions"]:
            return
        context.unlisted += total - len(flips)
        yield from self._findings(context, flips, baseline)

    def _is_flipped(self, context: Context, baseline: Baseline, before: Item, now: Item) -> bool:
        was, is_now = (
            identify_class(baseline.classes, before.predicted),
            identify_class(context.run.classes, now.predicted),
        )
        if context.options["any"] and not now.failed and was != is_now:
            return True
        right = before.label is not None and before.predicted == before.label
        return right and (now.failed or (now.label is not None and now.predicted != now.label))

    def _findings(self, context: Context, flips: list[tuple[Item, Item]], baseline: Baseline) -> Iterable[Finding]:
        indices = lookup(context, [now.source for _, now in flips])
        confidence = _confidences(context, list(indices.values()))
        # The surest mistakes first; a sample that fails has no confidence and comes before them.
        flips = sorted(flips, key=lambda flip: -confidence.get(indices.get(flip[1].source, -1), 2.0))
        for before, now in flips:
            was = identify_class(baseline.classes, before.predicted)
            outcome = (
                "fails now"
                if now.failed
                else f"is now predicted as {identify_class(context.run.classes, now.predicted)}"
            )
            yield Finding(
                f"{now.source} was predicted as {was} in {baseline.name} and {outcome}.",
                index=indices.get(now.source),
                source=now.source,
                value=now.predicted,
                threshold=before.predicted,
                sql="SELECT run_id, index, status, error, label, predicted, confidence, loss FROM lineage "
                f"WHERE source = {literal(now.source)}",
            )


def _confidences(context: Context, indices: list[int]) -> dict[int, float]:
    """Return the confidence of the predictions of some samples, by index."""
    if not indices:
        return {}
    rows = context.rows(
        f"SELECT index, max(confidence) AS confidence FROM {context.predictions} "
        f"WHERE index IN ({', '.join(map(str, indices))}) AND confidence IS NOT NULL GROUP BY index"
    )
    return {row["index"]: row["confidence"] for row in rows}
