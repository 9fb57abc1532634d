"""A diff as a comment on a pull request: the verdict first, the evidence below, long lists folded away.

Names of files and classes come from outside: they are shown as code, and can neither end a table cell nor begin HTML.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from audit.lineage.diff.diff import Diff
from audit.lineage.diff.flips import CAUSES
from audit.report.clean_text import clean
from audit.report.diff.text import (
    NOTHING_COMPARED,
    accuracy_name,
    also_changed,
    has_predictions,
    label_text,
    list_changed_data,
    p_text,
    percent,
    predicted_labels,
    size_text,
    stage_name,
)
from audit.report.inline_code import code

_MOST = 20


def diff_markdown(diff: Diff, rows: int = _MOST) -> str:
    """Return the whole diff as GitHub-flavoured Markdown."""
    lines = ["## audit diff", "", *_verdict(diff), "", *_runs(diff)]
    lines += _stages(diff)
    lines += _flips(diff, rows)
    lines += _classes(diff, rows)
    lines += _data(diff, rows)
    lines += [f"> {_escape(note)}" for note in diff.notes]
    return "\n".join(lines).rstrip() + "\n"


def _escape(value: Any) -> str:
    """Return text as plain words: no HTML, no links, no mentions."""
    escaped = "".join(f"\\{c}" if c in "\\`*_[]#~!@" else c for c in clean(value))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _verdict(diff: Diff) -> list[str]:
    if not diff.matched:
        return [f"**{NOTHING_COMPARED}**"]
    if diff.same:
        return [f"**Nothing differs** in {diff.matched:,} samples."]
    said = []
    if has_predictions(diff):
        accuracy = f"{accuracy_name(diff.flips)} {percent(diff.flips.accuracy_a)} → {percent(diff.flips.accuracy_b)}"
        said.append(f"**{diff.regressions:,} regressions, {diff.fixes:,} fixes**, {accuracy}")
    said.append(
        f"{diff.divergent:,} of {diff.matched:,} samples come out of the pipeline differently" if diff.divergent else ""
    )
    return [", ".join(part for part in said if part) + "." if any(said) else "Only the data differs."]


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    names = list(head)
    return [f"| {' | '.join(names)} |", "|" + " --- |" * len(names), *(f"| {' | '.join(row)} |" for row in rows), ""]


def _runs(diff: Diff) -> list[str]:
    flips = diff.flips
    rows = []
    for letter, side, accuracy in (("a", diff.a, flips.run_accuracy_a), ("b", diff.b, flips.run_accuracy_b)):
        name = code(side.run.name) if side.run.name else ""
        rows.append([letter, code(side.run.run_id), name, f"{side.run.samples:,}", percent(accuracy)])
    return _table(("", "run", "name", "samples", "accuracy"), rows)


def _stages(diff: Diff) -> list[str]:
    if not diff.divergent:
        return []
    rows = [
        [
            f"{group.count:,}",
            code(stage_name(group)),
            f"{_escape(group.reason)}: {code(group.detail)}",
            _escape(size_text(group)),
            code(group.example["source_b"]),
        ]
        for group in diff.divergences
    ]
    lines = ["### First divergent stage", "", *_table(("samples", "stage", "what changed", "size", "example"), rows)]
    if also := also_changed(diff):
        lines += [f"Also described differently: {', '.join(code(name) for name in also)}", ""]
    return lines


def _flips(diff: Diff, rows: int) -> list[str]:
    flips = diff.flips
    if not has_predictions(diff):
        return []
    counts = [
        [kind.replace("_", " "), f"{flips.total(kind):,}", *(f"{count:,}" for count in flips.counts[kind].values())]
        for kind in flips.counts
    ]
    lines = ["### Predictions", "", *_table(("", "all", *CAUSES), counts)]
    lines += [f"McNemar's exact test: p {p_text(flips.mcnemar_p)}", ""]
    for kind in ("regressions", "fixes"):
        shown = [
            [code(cell) for cell in (row["source_b"], label_text(row), *predicted_labels(row), row["cause"])]
            for row in flips.lists[kind][:rows]
        ]
        lines += _fold(f"{flips.total(kind):,} {kind}", _table(("file", "label", "a", "b", "cause"), shown), shown)
    return lines


def _classes(diff: Diff, rows: int) -> list[str]:
    changed = [row for row in diff.flips.per_class if row["accuracy_a"] != row["accuracy_b"]]
    changed.sort(key=lambda row: (row["accuracy_b"] or 0) - (row["accuracy_a"] or 0))
    shown = [
        [
            code(row["class"]),
            percent(row["accuracy_a"]),
            percent(row["accuracy_b"]),
            f"{row['regressions']:,}",
            f"{row['fixes']:,}",
        ]
        for row in changed[:rows]
    ]
    table = _table(("class", "accuracy a", "accuracy b", "regressions", "fixes"), shown)
    return _fold(f"{len(changed):,} classes with another accuracy", table, shown)


def _data(diff: Diff, rows: int) -> list[str]:
    lines: list[str] = []
    for name, found in list_changed_data(diff, rows):
        shown = [f"- {code(line)}" for line in found]
        lines += _fold(f"{diff.counts[name]:,} {name.replace('_', ' ')}", [*shown, ""], shown)
    return lines


def _fold(title: str, lines: list[str], shown: list[Any]) -> list[str]:
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "</details>", ""] if shown else []
