"""The changes of a baseline as Markdown, which also reads well in a terminal and in a pull request."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.baseline_changes import BaselineChanges
from audit.report.inline_code import code


def baseline_markdown(changes: BaselineChanges) -> str:
    """Return what an update changes, the predictions first."""
    return "\n".join(_lines(changes)) + "\n"


def _lines(changes: BaselineChanges) -> Iterable[str]:
    before, now = changes.before, changes.now
    yield f"### Baseline {code(changes.path)}"
    yield ""
    if before is None:
        yield f"New, from the run {code(now.name)}: accuracy {_percent(now.accuracy)}."
        return
    yield f"From {code(before.name)} to {code(now.name)}: accuracy {_percent(before.accuracy)} → {_percent(now.accuracy)}."
    if changes.is_empty:
        yield ""
        yield "No source, prediction, stage or code file differs."
        return
    wrong, right = changes.counts["newly wrong"], changes.counts["newly right"]
    if wrong or right:
        yield f"{wrong:,} newly wrong, {right:,} newly right (McNemar's exact test: p {changes.chance:.3g})."
    for title, lines in (("Stages", changes.stages), ("Code files", changes.code)):
        yield from _section(title, len(lines), lines)
    for kind, count in changes.counts.items():
        yield from _section(kind.capitalize(), count, changes.named[kind])


def _section(title: str, count: int, lines: list[str]) -> Iterable[str]:
    if not count:
        return
    yield ""
    yield f"**{title}: {count:,}**"
    yield ""
    yield from (f"- {code(line)}" for line in lines)
    if count > len(lines):
        yield f"- … and {count - len(lines):,} more"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.2%}"
