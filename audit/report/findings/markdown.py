"""Findings for a pull request or a step summary. Nothing that came from data can become markup or a mention."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from urllib.parse import quote

from audit.checks.finding_pictures import FindingPicture
from audit.checks.report import CheckOutcome, Report
from audit.report.clean_text import clean

_MOST_SHOWN = 20
_MARKS = {"pass": "✅ pass", "fail": "❌ fail", "skip": "⏭️ skip", "error": "💥 error"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~@:&-])")


def as_markdown(report: Report, pictures: Sequence[FindingPicture] = (), folder: str | None = None) -> str:
    """Return a heading that says how it ended, a table of the checks, pictures, and the findings below.

    Pictures are part of the text, or files of a folder (see `write_pictures`).
    """
    name = f" ({_escape(report.run_name)})" if report.run_name else ""
    against = f", against {_escape(report.baseline)}" if report.baseline else ""
    lines = [
        f"### audit check: {'✅ passed' if report.passed else '❌ failed'}",
        "",
        f"Run `{report.run_id}`{name}, {report.samples:,} samples{against}.",
        "",
        "| check | severity | status | |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {outcome.check} | {outcome.severity} | {_mark(outcome)} | {_escape(outcome.message)} |"
        for outcome in report.outcomes
        if outcome.status in ("fail", "error")
    ]
    skipped = report.with_status("skip")
    for status, others in (("pass", report.with_status("pass")), ("skip", skipped)):
        if others:
            lines.append(f"| {len(others)} more | | {_MARKS[status]} | {', '.join(one.check for one in others)} |")
    lines += _pictures(pictures, folder)
    for outcome in report.with_status("fail"):
        lines += _details(outcome)
    if skipped:
        rows = [f"| {outcome.check} | {_escape(outcome.message)} |" for outcome in skipped]
        lines += _fold("Why checks were skipped", ["| check | |", "| --- | --- |", *rows])
    lines += [f"> {_escape(note)}" for note in report.notes]
    return "\n".join(lines) + "\n"


def write_pictures(pictures: Sequence[FindingPicture], folder: str) -> None:
    """Write each picture as a file of the folder, which is made if it does not exist."""
    os.makedirs(folder, exist_ok=True)
    for picture in pictures:
        with open(os.path.join(folder, _file_name(picture)), "wb") as out:
            out.write(picture.jpeg)


def _file_name(picture: FindingPicture) -> str:
    return f"{picture.check}-{picture.finding.index}.jpg"


def _pictures(pictures: Sequence[FindingPicture], folder: str | None) -> list[str]:
    if not pictures:
        return []
    lines = ["", "| | index | |", "| --- | --- | --- |"]
    for picture in pictures:
        if folder is None:
            target = "data:image/jpeg;base64," + base64.b64encode(picture.jpeg).decode()
        else:
            target = quote(f"{folder.rstrip('/')}/{_file_name(picture)}")
        finding = picture.finding
        lines.append(f"| ![{finding.index}]({target}) | {finding.index} | {_escape(finding.message)} |")
    return [*lines, ""]


def _mark(outcome: CheckOutcome) -> str:
    return "⚠️ found" if outcome.status == "fail" and outcome.severity != "error" else _MARKS[outcome.status]


def _details(outcome: CheckOutcome) -> list[str]:
    lines = ["| index | source | stage | |", "| --- | --- | --- | --- |"]
    for finding in outcome.findings[:_MOST_SHOWN]:
        cells = [finding.index, finding.source, finding.stage, finding.message]
        lines.append("| " + " | ".join("" if cell is None else _escape(str(cell)) for cell in cells) + " |")
    if outcome.total > _MOST_SHOWN:
        lines.append(f"| | | | … and {outcome.total - _MOST_SHOWN:,} more |")
    return _fold(f"{outcome.check}: {outcome.total:,} finding{'' if outcome.total == 1 else 's'}", lines)


def _fold(title: str, lines: list[str]) -> list[str]:
    """Return lines that are shown when their title is clicked."""
    return ["", f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""]


def _escape(text: str) -> str:
    # A mention or an issue number is looked for in the rendered text, where a backslash no longer helps: a space of no
    # width does.
    text = clean(text).replace("@", "@\u200b").replace("#", "#\u200b")
    return _SPECIAL.sub(r"\\\1", text).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")
