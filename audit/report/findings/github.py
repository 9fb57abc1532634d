"""Annotations as GitHub's runners read them from a log: one line for each finding, at its file.

A line that begins with two colons is a command there, so file names and messages are escaped, every line of them.
"""

from __future__ import annotations

from audit.checks.base import Finding
from audit.checks.report import CheckOutcome, Report
from audit.report.findings.finding_location import path_of
from audit.report.findings.text import as_text

#: The runner shows ten annotations of each level for a step; more only make the log long.
_MOST = 10
_LEVELS = {"error": "error", "warning": "warning", "info": "notice"}


def as_annotations(report: Report) -> str:
    """Return annotations first, then the same text that a terminal shows."""
    lines: list[str] = []
    for outcome in report.outcomes:
        if outcome.status == "error":
            lines.append(f"::error title={_property(outcome.check)}::could not be run: {_data(outcome.message)}")
        lines += [_annotation(report, outcome, finding) for finding in outcome.findings[:_MOST]]
        if outcome.total > _MOST:
            lines.append(f"::notice title={_property(outcome.check)}::{outcome.total - _MOST:,} more findings")
    # A file name that begins with :: must also stay text in the plain part.
    plain = "\n".join(f" {line}" if line.lstrip().startswith("::") else line for line in as_text(report).split("\n"))
    return "\n".join(lines) + ("\n" if lines else "") + plain


def _annotation(report: Report, outcome: CheckOutcome, finding: Finding) -> str:
    level = _LEVELS[outcome.severity_of(finding)]
    place = f"file={_property(path_of(report, finding))},title={_property(outcome.check)}"
    return f"::{level} {place}::{_data(finding.message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
