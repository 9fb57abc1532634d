"""Findings for a pull request or a step summary. Nothing that came from data can become markup or a mention."""

from __future__ import annotations

import re

from audit.checks.report import CheckOutcome, Report
from audit.report.text import clean

_SHOWN = 20
_MARKS = {"pass": "✅ pass", "fail": "❌ fail", "skip": "⏭️ skip", "error": "💥 error"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~@:&-])")


def as_markdown(report: Report) -> str:
    """Return a heading that says how it ended, a table of the checks, and the findings below."""
    name = f" ({_escaped(report.run_name)})" if report.run_name else ""
    against = f", against {_escaped(report.baseline)}" if report.baseline else ""
    lines = [
        f"### audit check: {'✅ passed' if report.passed else '❌ failed'}",
        "",
        f"Run `{report.run_id}`{name}, {report.samples:,} samples{against}.",
        "",
        "| check | severity | status | |",
        "| --- | --- | --- | --- |",
    ]
    quiet = [outcome for outcome in report.outcomes if outcome.status == "pass"]
    lines += [
        f"| {outcome.check} | {outcome.severity} | {_mark(outcome)} | {_escaped(outcome.message)} |"
        for outcome in report.outcomes
        if outcome.status != "pass"
    ]
    if quiet:
        listed = ", ".join(outcome.check for outcome in quiet)
        lines.append(f"| {len(quiet)} more | | {_MARKS['pass']} | {listed} |")
    for outcome in report.with_status("fail"):
        lines += _details(outcome)
    lines += [f"> {_escaped(note)}" for note in report.notes]
    return "\n".join(lines) + "\n"


def _mark(outcome: CheckOutcome) -> str:
    return "⚠️ found" if outcome.status == "fail" and outcome.severity != "error" else _MARKS[outcome.status]


def _details(outcome: CheckOutcome) -> list[str]:
    head = f"<details><summary>{outcome.check}: {outcome.total:,} findings</summary>"
    lines = ["", head, "", "| index | source | stage | |", "| --- | --- | --- | --- |"]
    for finding in outcome.findings[:_SHOWN]:
        cells = [finding.index, finding.source, finding.stage, finding.message]
        lines.append("| " + " | ".join("" if cell is None else _escaped(str(cell)) for cell in cells) + " |")
    if outcome.total > _SHOWN:
        lines.append(f"| | | | … and {outcome.total - _SHOWN:,} more |")
    return [*lines, "", "</details>", ""]


def _escaped(text: str) -> str:
    # A mention or an issue number is looked for in the rendered text, where a backslash no longer helps: a space of no
    # width does.
    text = clean(text).replace("@", "@\u200b").replace("#", "#\u200b")
    return _SPECIAL.sub(r"\\\1", text).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")
