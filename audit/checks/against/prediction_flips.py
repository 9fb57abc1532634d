"""`prediction_flips`: sources that the baseline got right and this run gets wrong."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.baseline import Item
from audit.checks.context import Context, literal
from audit.checks.matched import lookup, matched


class PredictionFlips(Check):
    """Compared source by source: an unchanged mean can hide as many losses as gains."""

    name = "prediction_flips"
    group = "against"
    description = "Predictions that were right in the baseline and are wrong now (or differ at all, with `any`)."
    needs = ("model", "baseline")
    options = settings(
        max_regressions=Option(0, "How many may turn from right to wrong."),
        any=Option(False, "Count every prediction that differs, whatever the label says."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        baseline = context.facts.baseline
        assert baseline is not None
        flips: list[tuple[Item, Item]] = []
        total = compared = 0
        for before, now in matched(context, baseline):
            if before is None or now is None or before.predicted is None or now.predicted is None:
                continue
            compared += 1
            if before.predicted != now.predicted and (context.options["any"] or _regressed(before, now)):
                total += 1
                if len(flips) < context.most:
                    flips.append((before, now))
        context.note(f"{compared:,} predictions compared")
        if total <= context.options["max_regressions"]:
            return
        context.unlisted += total - len(flips)
        yield from self._told(context, flips, baseline.name)

    def _told(self, context: Context, flips: list[tuple[Item, Item]], name: str) -> Iterable[Finding]:
        indices = lookup(context, [now.source for _, now in flips])
        classes = context.run.classes or []
        for before, now in flips:
            was, has = (
                classes[p] if p is not None and p < len(classes) else p for p in (before.predicted, now.predicted)
            )
            yield Finding(
                f"{now.source} was predicted as {was} in {name} and is now predicted as {has}.",
                index=indices.get(now.source),
                source=now.source,
                value=now.predicted,
                threshold=before.predicted,
                sql="SELECT run_id, index, label, predicted, confidence, loss FROM lineage "
                f"WHERE source = {literal(now.source)}",
            )


def _regressed(before: Item, now: Item) -> bool:
    return before.predicted == before.label and now.predicted != now.label


CHECK = PredictionFlips
