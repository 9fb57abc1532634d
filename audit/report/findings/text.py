"""Findings for a terminal and for a log: worst first, each with its file, index and stage.

Everything that came from a file name, a label or an error is shown as text, never as markup. Plain lines without
colour; the command line colours them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from audit.checks.base import Check
from audit.checks.report import CheckOutcome, Report
from audit.report.text import clean

#: How many findings of a check are listed: what is surely wrong in more detail than what wants a look.
_SHOWN = {"error": 10, "warning": 3, "info": 1}
#: If more checks than this have findings, warnings are shown with one example each, so that a screen holds all.
_MANY = 5
#: How many reasons of skipped checks are shown.
_REASONS = 4
_MARKS = {"pass": "pass", "fail": "FAIL", "skip": "skip", "error": "ERROR"}


def as_text(report: Report, *, verbose: bool = False) -> str:
    """Return what was found, then what was skipped and why, then one line that says how it ended."""
    return "".join(f"{text}\n" for _, text in text_lines(report, verbose=verbose))


def text_lines(report: Report, *, verbose: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (style, line); the command line colours by the style."""
    name = f" ({clean(report.run_name)})" if report.run_name else ""
    against = f", against {clean(report.baseline)}" if report.baseline else ""
    yield "dim", f"run {report.run_id}{name}: {report.samples:,} samples{against}"
    found = report.with_status("error", "fail")
    for outcome in found:
        yield from _outcome(outcome, 1 if len(found) > _MANY and outcome.severity != "error" else 10, report.is_stored)
    skipped = report.with_status("skip")
    yield from _skip_lines(skipped, verbose=verbose)
    passed = report.with_status("pass")
    for outcome in passed:
        if verbose or outcome.notes:
            said = f": {clean('; '.join(outcome.notes))}" if outcome.notes else ""
            yield "green", f"pass  {outcome.check}{said}"
    for note in report.notes:
        yield "yellow", f"note  {clean(note)}"
    yield ("green" if report.passed else "red"), _ending(report, len(passed), len(skipped))


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
    yield style, f"{mark}  {outcome.check}: {outcome.total:,} finding{'s' if outcome.total != 1 else ''}{notes}"
    most = min(most, _SHOWN[outcome.severity])
    for finding in outcome.findings[:most]:
        weight = outcome.severity_of(finding)
        lighter = f"[{weight}] " if weight != outcome.severity else ""
        yield "", f"      {lighter}{clean(finding.message)}"
    rest = outcome.total - min(len(outcome.findings), most)
    if rest:
        query = f"audit sql \"FROM findings WHERE check_name = '{outcome.check}'\""
        yield "dim", f"      … and {rest:,} more: {query if is_stored else 'see --format json'}"


def _ending(report: Report, passed: int, skipped: int) -> str:
    failed = sum(outcome.fails(report.fail_on) for outcome in report.outcomes)
    lesser = len(report.with_status("fail", "error")) - failed
    warned = f", {lesser} with lesser findings" if lesser else ""
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
