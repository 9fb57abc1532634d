"""JUnit XML: a suite for each check, a test case for each failing file; passed and skipped checks are one case each.

What is found below the severity that fails the build is a passing case with the finding as its output, because every
reader of this format takes a failure for a broken build.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from audit.checks.base import SEVERITIES, Finding
from audit.checks.report import CheckOutcome, Report
from audit.report.findings.location import path_of

#: Characters that XML 1.0 cannot hold, whatever the escaping.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_junit(report: Report) -> str:
    """Return the whole document."""
    root = ET.Element("testsuites", name="audit check")
    for outcome in report.outcomes:
        root.append(_suite(report, outcome))
    totals = {
        key: sum(int(suite.get(key, "0")) for suite in root) for key in ("tests", "failures", "errors", "skipped")
    }
    for key, count in totals.items():
        root.set(key, str(count))
    root.set("time", f"{sum(outcome.seconds for outcome in report.outcomes):.3f}")
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(report: Report, outcome: CheckOutcome) -> ET.Element:
    suite = ET.Element("testsuite", name=_safe(outcome.check), time=f"{outcome.seconds:.3f}")
    if outcome.status == "fail":
        for finding in outcome.findings:
            _finding(suite, report, outcome, finding)
        if outcome.total > len(outcome.findings):
            tag = "failure" if outcome.fails(report.fail_on) else None
            _case(suite, outcome, f"{outcome.total - len(outcome.findings):,} more", tag, outcome.message)
    elif outcome.status == "error":
        _case(suite, outcome, outcome.check, "error", outcome.message)
    else:
        _case(suite, outcome, outcome.check, "skipped" if outcome.status == "skip" else None, outcome.message)
    cases = list(suite)
    suite.set("tests", str(len(cases)))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(sum(case.find(tag) is not None for case in cases)))
    return suite


def _finding(suite: ET.Element, report: Report, outcome: CheckOutcome, finding: Finding) -> None:
    name = finding.source or outcome.check
    if finding.index is not None:
        name += f" [{finding.index}]"
    weight = outcome.severity_of(finding)
    fails = SEVERITIES.index(weight) >= SEVERITIES.index(report.fail_on)
    case = _case(suite, outcome, name, "failure" if fails else None, finding.message)
    case.set("file", _safe(path_of(report, finding)))
    details = [f"{weight}: {finding.message}"]
    details += [f"evidence: audit sql {finding.sql!r}"] if finding.sql else []
    if fails:
        found = case.find("failure")
        assert found is not None
        found.set("type", weight)
        found.text = _safe("\n".join(details))
    else:
        ET.SubElement(case, "system-out").text = _safe("\n".join(details))


def _case(suite: ET.Element, outcome: CheckOutcome, name: str, tag: str | None, message: str) -> ET.Element:
    case = ET.SubElement(
        suite, "testcase", classname=f"audit.{_safe(outcome.group)}.{_safe(outcome.check)}", name=_safe(name), time="0"
    )
    if tag:
        ET.SubElement(case, tag, message=_safe(message))
    return case


def _safe(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
