"""`dataset_changed`: sources added, removed, with other bytes or another label than in the baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.baseline import Baseline, Item
from audit.checks.context import Context
from audit.checks.shared.source_pairs import lookup, pair_by_source
from audit.store.sql_literal import literal

#: The kinds of changes, in the order of the findings, and what is said of many sources.
_KINDS = {"added": "are new", "removed": "are gone", "bytes": "have other bytes", "label": "have another label"}


@dataclass(frozen=True, slots=True)
class _SourceChange:
    """One source that differs from the baseline: what is said of it, and its digest."""

    kind: str
    source: str
    description: str
    digest: str | None
    label: int | None
    value: float | None = None
    threshold: float | None = None


class DatasetChanged(Check):
    """Report added, removed and changed sources separately, because a dataset may grow."""

    description = "Sources that were added, removed, or have other bytes or another label than in the baseline."
    question = "What changed against the baseline?"
    rule = "sources, stages and predictions are joined; a comparison of nothing does not pass"
    assumes = "the baseline has the same sources"
    severity = "warning"
    needs = ("baseline",)
    options = settings(
        added=Option(True, "Report sources that the baseline does not have."),
        removed=Option(True, "Report sources that only the baseline has."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        baseline = context.facts.baseline
        assert baseline is not None
        changes: dict[str, list[_SourceChange]] = {kind: [] for kind in _KINDS}
        counts: Counter[str] = Counter()
        total = 0
        for before, now in pair_by_source(context, baseline):
            total += now is not None
            change = _compare(before, now)
            if change is None or not context.options.get(change.kind, True):
                continue
            counts[change.kind] += 1
            if len(changes[change.kind]) < context.most:
                changes[change.kind].append(change)
        if counts["added"] == counts["removed"] == total and context.has_one_cause(total, total):
            renamed = _find_renamed(changes["removed"], changes["added"])
            if renamed:
                (old, new), relabelled = renamed[0], sum(a.label != b.label for a, b in renamed)
                yield Finding(
                    f"All {total:,} sources have other names than in {baseline.name}, and the same bytes: {old.source} is now "
                    f"{new.source}."
                    + (
                        f" {relabelled:,} of them {'has' if relabelled == 1 else 'have'} another label."
                        if relabelled
                        else ""
                    ),
                    value=float(total),
                    sql=_evidence(context, baseline, (old.source, new.source)),
                )
                return
        for kind, found in changes.items():
            if context.has_one_cause(counts[kind], total):
                said, one = _KINDS[kind], found[0]
                yield Finding(
                    f"{f'All {total:,}' if counts[kind] == total else f'{counts[kind]:,} of {total:,}'} sources {said}, against "
                    f"{baseline.name}, such as {one.source}.",
                    value=float(counts[kind]),
                    sql=_evidence(context, baseline, (one.source,)),
                )
                continue
            context.unlisted += counts[kind] - len(found)
            indices = lookup(context, [change.source for change in found])
            for change in found:
                yield Finding(
                    f"{change.source} {change.description}, against {baseline.name}.",
                    index=indices.get(change.source),
                    source=change.source,
                    value=change.value,
                    threshold=change.threshold,
                    sql=_evidence(context, baseline, (change.source,)),
                )


def _compare(before: Item | None, now: Item | None) -> _SourceChange | None:
    if before is None or now is None:
        if now is not None:
            return _SourceChange("added", now.source, "is new", now.digest, now.label)
        return (
            None if before is None else _SourceChange("removed", before.source, "is gone", before.digest, before.label)
        )
    if before.digest != now.digest:
        return _SourceChange("bytes", now.source, "has other bytes", now.digest, now.label)
    if before.label != now.label:
        said = f"had the label {before.label} and now has {now.label}"
        return _SourceChange("label", now.source, said, now.digest, now.label, now.label, before.label)
    return None


def _find_renamed(
    removed: list[_SourceChange], added: list[_SourceChange]
) -> list[tuple[_SourceChange, _SourceChange]]:
    """Return each source before and now, if the bytes of all are the same; nothing if some are not, or are unknown."""
    before, now = ({change.digest: change for change in changes} for changes in (removed, added))
    if None in before or before.keys() != now.keys():
        return []
    return [(before[digest], now[digest]) for digest in before]


def _evidence(context: Context, baseline: Baseline, sources: Sequence[str]) -> str:
    runs = ", ".join(literal(run) for run in (baseline.run_id, context.run.run_id))
    return (
        "SELECT run_id, index, source, source_digest, label FROM samples "
        f"WHERE run_id IN ({runs}) AND source IN ({', '.join(map(literal, sources))})"
    )
