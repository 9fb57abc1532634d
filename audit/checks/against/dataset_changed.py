"""`dataset_changed`: sources added, removed, with other bytes or another label than in the baseline."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.checks.shared.source_pairs import lookup, pair_by_source
from audit.store.sql_literal import literal


class DatasetChanged(Check):
    """Report added, removed and changed sources separately, because a dataset may grow."""

    description = "Sources that were added, removed, or have other bytes or another label than in the baseline."
    severity = "warning"
    needs = ("baseline",)
    options = settings(
        added=Option(True, "Report sources that the baseline does not have."),
        removed=Option(True, "Report sources that only the baseline has."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        baseline = context.facts.baseline
        assert baseline is not None
        found: list[tuple[str, str, float | None, float | None]] = []
        for before, now in pair_by_source(context, baseline):
            change: tuple[str, str, float | None, float | None] | None = None
            if before is None and now is not None and context.options["added"]:
                change = (now.source, "is new", None, None)
            elif now is None and before is not None and context.options["removed"]:
                change = (before.source, "is gone", None, None)
            elif before is not None and now is not None and before.digest != now.digest:
                change = (now.source, "has other bytes", None, None)
            elif before is not None and now is not None and before.label != now.label:
                change = (now.source, f"had the label {before.label} and now has {now.label}", now.label, before.label)
            if change and len(found) < context.most:
                found.append(change)
            elif change:
                context.unlisted += 1
        indices = lookup(context, [source for source, *_ in found])
        runs = ", ".join(literal(run) for run in (baseline.run_id, context.run.run_id))
        for source, said, value, threshold in found:
            yield Finding(
                f"{source} {said}, against {baseline.name}.",
                index=indices.get(source),
                source=source,
                value=value,
                threshold=threshold,
                sql="SELECT run_id, index, source, source_digest, label FROM samples "
                f"WHERE run_id IN ({runs}) AND source = {literal(source)}",
            )
