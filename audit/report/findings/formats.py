"""The table of report formats; each format has its own file."""

from __future__ import annotations

from collections.abc import Callable

from audit import plainjson
from audit.checks.report import Report
from audit.errors import UsageError
from audit.output_file import write_text
from audit.report.findings.github import as_annotations
from audit.report.findings.junit import as_junit
from audit.report.findings.markdown import as_markdown
from audit.report.findings.sarif import as_sarif
from audit.report.findings.text import as_text


def as_json(report: Report) -> str:
    """Return the report as JSON, as the command line prints it."""
    return plainjson.dumps(report.as_json(), indent=1) + "\n"


FORMS: dict[str, Callable[[Report], str]] = {
    "text": as_text,
    "json": as_json,
    "junit": as_junit,
    "sarif": as_sarif,
    "github": as_annotations,
    "markdown": as_markdown,
}


def write_report(report: Report, path: str, form: str) -> None:
    """Write one format to a file, which appears only when it is complete."""
    write_text(path, FORMS[form](report))


def append_summary(report: Report, path: str) -> None:
    """Add the Markdown to a step summary, as CI systems collect it."""
    try:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as out:
            out.write(as_markdown(report))
    except OSError as error:
        raise UsageError(f"The step summary {path} could not be written: {error.strerror}.") from error
