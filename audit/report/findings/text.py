"""Findings for a terminal and for a log: worst first, each with its file, index and stage.

By default the report fits a screen: the more checks have findings, the fewer examples of each are shown.
Everything that came from a file name, a label or an error is shown as text, never as markup. Plain lines without
colour; the command line colours them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from audit.checks.base import Check, Finding, Severity
from audit.checks.report import CheckOutcome, Report
from audit.report.clean_text import clean

#: A screen: a report has at most this many rows of this width, unless more checks than that have something to say.
_ROWS, _WIDTH = 40, 120
#: How many reasons of skipped checks are shown.
_REASONS = 4
_MARKS = {"pass": "pass", "fail": "FAIL", "skip": "skip", "error": "ERROR"}
#: What differs between findings of one kind: quoted text and numbers. The source is left out by its name.
_VARYING_PARTS = re.compile(r"'[^']*'|\"[^\"]*\"|\d[\d.,]*")


@dataclass(frozen=True, slots=True)
class _Detail:
    """How many findings of a check are listed, by its severity, and whether checks that passed show their notes."""

    error: int
    warning: int
    info: int
    notes: bool = True

    def of(self, severity: Severity) -> int:
        """Return how many findings of a check are listed."""
        return {"error": self.error, "warning": self.warning, "info": self.info}[severity]


#: From the most detailed; what is surely wrong keeps its examples longest.
_DETAILS = (
    _Detail(10, 3, 1), _Detail(5, 3, 1), _Detail(5, 1, 1), _Detail(3, 1, 0), _Detail(3, 1, 0, False), _Detail(1, 1, 0, False),
    _Detail(1, 0, 0, False),
)  # fmt: skip


def as_text(report: Report, *, verbose: bool = False) -> str:
    """Return what was found, then what was skipped and why, then one line that says how it ended."""
    return "".join(f"{text}\n" for _, text in text_lines(report, verbose=verbose))


def text_lines(report: Report, *, verbose: bool = False) -> list[tuple[str, str]]:
    """Return (style, line); the command line colours by the style. Without `verbose`, as many as a screen holds."""
    lines: list[tuple[str, str]] = []
    for detail in _DETAILS:
        lines = list(_lines(report, detail, verbose))
        if verbose or sum(-(-len(text) // _WIDTH) for _, text in lines) <= _ROWS:
            break
    return lines


def _lines(report: Report, detail: _Detail, verbose: bool) -> Iterator[tuple[str, str]]:
    name = f" ({clean(report.run_name)})" if report.run_name else ""
    against = f", against {clean(report.baseline)}" if report.baseline else ""
    yield "dim", f"run {report.run_id}{name}: {report.samples:,} samples{against}"
    for outcome in report.with_status("error", "fail"):
        yield from _outcome(outcome, detail.of(outcome.severity), report.is_stored)
    skipped = report.with_status("skip")
    yield from _skip_lines(skipped, verbose=verbose)
    passed = report.with_status("pass")
    if verbose or detail.notes:
        yield from _pass_lines(passed, verbose=verbose)
    for note in report.notes:
        yield "yellow", f"note  {clean(note)}"
    yield ("green" if report.passed else "red"), _result_line(report, len(passed), len(skipped))


def _pass_lines(outcomes: list[CheckOutcome], *, verbose: bool) -> Iterator[tuple[str, str]]:
    """Yield one line for each note, with the checks that say it; those without one only if `verbose`."""
    notes: dict[str, list[str]] = {}
    for outcome in outcomes:
        said = "; ".join(outcome.notes)
        if said or verbose:
            notes.setdefault(said or outcome.check, []).append(outcome.check)
    for said, checks in notes.items():
        yield "green", f"pass  {', '.join(checks)}" + ("" if said == checks[0] else f": {clean(said)}")


def _skip_lines(outcomes: list[CheckOutcome], *, verbose: bool) -> Iterator[tuple[str, str]]:
    """Yield one line for each reason, with the checks that it concerns; all of them if few or `verbose`."""
    reasons: dict[str, list[str]] = {}
    for outcome in outcomes:
        reasons.setdefault(outcome.message, []).append(outcome.check)
    listed = sorted(reasons.items(), key=lambda item: -len(item[1]))
    shown = listed if verbose or len(listed) <= _REASONS + 1 else listed[:_REASONS]
    for reason, checks in shown:
        yield "dim", f"skip  {', '.join(checks)}: {clean(reason)}"
    rest = [check for _, checks in listed[len(shown) :] for check in checks]
    if rest:
        yield "dim", f"skip  {', '.join(rest)}: for other reasons (-v shows them)"


def _outcome(outcome: CheckOutcome, most: int, is_stored: bool) -> Iterator[tuple[str, str]]:
    style = "red" if outcome.status == "error" or outcome.severity == "error" else "yellow"
    mark = _MARKS[outcome.status] if outcome.severity == "error" or outcome.status == "error" else outcome.severity
    if outcome.status == "error":
        yield style, f"{mark} {outcome.check} could not be run: {clean(outcome.message)}"
        return
    notes = f" ({clean('; '.join(outcome.notes))})" if outcome.notes else ""
    counted = f"{mark}  {outcome.check}: {outcome.total:,} finding{'s' if outcome.total != 1 else ''}{notes}"
    examples = _examples(outcome.findings, most)
    rest = outcome.total - len(examples)
    query = f"audit sql \"FROM findings WHERE check_name = '{outcome.check}'\"" if is_stored else "see --format json"
    yield style, counted if examples else f"{counted}: {query}"
    for finding in examples:
        weight = outcome.severity_of(finding)
        lighter = f"[{weight}] " if weight != outcome.severity else ""
        yield "", f"      {lighter}{clean(finding.message)}"
    if examples and rest:
        yield "dim", f"      … and {rest:,} more: {query}"


def _examples(findings: list[Finding], most: int) -> list[Finding]:
    """Return findings to list, in their order: of each kind the first, then the next ones."""
    firsts = {_kind(finding): place for place, finding in reversed(list(enumerate(findings)))}
    first_places = set(firsts.values())
    order = sorted(range(len(findings)), key=lambda place: (place not in first_places, place))
    return [findings[place] for place in sorted(order[:most])]


def _kind(finding: Finding) -> tuple[str | None, int | None, str]:
    """Return what findings of one kind have in common: the message without its source and its numbers."""
    message = finding.message.replace(finding.source, "") if finding.source else finding.message
    return finding.severity, finding.stage, _VARYING_PARTS.sub("", message)


def _result_line(report: Report, passed: int, skipped: int) -> str:
    failed = sum(outcome.fails(report.fail_on) for outcome in report.outcomes)
    lesser = len(report.with_status("fail", "error")) - failed
    warned = f", {lesser} with less severe findings" if lesser else ""
    word = "passed" if report.passed else "failed"
    return f"{word}: {failed} of {len(report.outcomes)} checks failed{warned}, {passed} passed, {skipped} skipped"


def list_lines(checks: Iterable[type[Check]]) -> Iterator[tuple[str, str]]:
    """Yield every check with its options, as `--list` explains them."""
    group = None
    for check in checks:
        if check.group != group:
            group = check.group
            yield "bold", f"{group}"
        needs = f"; needs {', '.join(check.needs)}" if check.needs else ""
        off = "" if check.default else "; not run unless configured"
        yield "", f"  {check.name} ({check.severity}{needs}{off})"
        yield "", f"      {check.description}"
        for key, option in check.options.items():
            default = "none" if option.default is None else repr(option.default)
            yield "dim", f"      {key} = {default}: {option.help}"


def list_json(checks: Iterable[type[Check]]) -> list[dict[str, object]]:
    """Return the same for programs."""
    return [
        {
            "check": check.name,
            "group": check.group,
            "severity": check.severity,
            "default": check.default,
            "description": check.description,
            "needs": list(check.needs),
            "options": {key: {"default": o.default, "help": o.help} for key, o in check.options.items()},
        }
        for check in checks
    ]
