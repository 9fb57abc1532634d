"""JUnit XML: a suite for each check, a test case for each failing file; passed and skipped checks are one case each.

Only elements and attributes that every published schema of this format has, because Jenkins and Azure refuse others: a
case has a name, a class name and a time, and at most one child; totals are at the suites. What is found below the
severity that fails the build is a passing case with the finding in the suite's output, because every reader of this
format takes a failure for a broken build.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime

from audit.checks.base import SEVERITIES, Finding
from audit.checks.report import CheckOutcome, Report
from audit.report.findings.finding_location import path_of

#: Characters that XML 1.0 cannot hold, whatever the escaping.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_junit(report: Report) -> str:
    """Return the whole document."""
    root = ET.Element("testsuites")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    for number, outcome in enumerate(report.outcomes):
        root.append(_suite(report, outcome, number, now))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(report: Report, outcome: CheckOutcome, number: int, now: str) -> ET.Element:
    suite = ET.Element(
        "testsuite",
        package=f"audit.{_replace_forbidden_characters(outcome.group)}",
        id=str(number),
        name=_replace_forbidden_characters(outcome.check),
        timestamp=now,
        hostname="localhost",
        time=f"{outcome.seconds:.3f}",
    )
    ET.SubElement(suite, "properties")
    lesser = _cases(suite, report, outcome)
    cases = suite.findall("testcase")
    _number(cases)
    suite.set("tests", str(len(cases)))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(sum(case.find(tag) is not None for case in cases)))
    ET.SubElement(suite, "system-out").text = _replace_forbidden_characters("\n".join(lesser))
    ET.SubElement(suite, "system-err")
    return suite


def _number(cases: list[ET.Element]) -> None:
    """Give each case a name of its own: of several with one name, GitLab shows only the first."""
    taken: set[str] = set()
    for case in cases:
        name, number = case.get("name", ""), 1
        while (own := name if number == 1 else f"{name} ({number})") in taken:
            number += 1
        taken.add(own)
        case.set("name", own)


def _cases(suite: ET.Element, report: Report, outcome: CheckOutcome) -> list[str]:
    """Add the cases of one check; return what is written of findings that do not fail the build."""
    if outcome.status != "fail":
        tag = {"error": "error", "skip": "skipped"}.get(outcome.status)
        _case(suite, outcome, outcome.check, tag, outcome.message, "error")
        return []
    lesser: list[str] = []
    for finding in outcome.findings:
        name = finding.source or outcome.check
        if finding.index is not None:
            name += f" [{finding.index}]"
        weight = outcome.severity_of(finding)
        fails = SEVERITIES.index(weight) >= SEVERITIES.index(report.fail_on)
        details = _details(report, finding, weight)
        _case(suite, outcome, name, "failure" if fails else None, finding.message, weight, details)
        lesser += [] if fails else [details]
    if outcome.total > len(outcome.findings):
        tag = "failure" if outcome.fails(report.fail_on) else None
        rest = f"{outcome.total - len(outcome.findings):,} more"
        _case(suite, outcome, rest, tag, outcome.message, outcome.severity)
    return lesser


def _details(report: Report, finding: Finding, weight: str) -> str:
    lines = [f"{weight}: {finding.message}", f"file: {path_of(report, finding)}"]
    lines += [f"evidence: audit sql {finding.sql!r}"] if finding.sql else []
    return "\n".join(lines)


def _case(
    suite: ET.Element, outcome: CheckOutcome, name: str, tag: str | None, message: str, kind: str, details: str = ""
) -> None:
    classname = f"audit.{_replace_forbidden_characters(outcome.group)}.{_replace_forbidden_characters(outcome.check)}"
    case = ET.SubElement(suite, "testcase", classname=classname, name=_replace_forbidden_characters(name), time="0")
    if tag:
        child = ET.SubElement(
            case, tag, {} if tag == "skipped" else {"type": kind}, message=_replace_forbidden_characters(message)
        )
        child.text = _replace_forbidden_characters(details) or None


def _replace_forbidden_characters(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
