"""Every form of a report: well-formed, valid where a schema says so, and deaf to what hostile names say."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.checks.base import Finding
from audit.checks.report import CheckOutcome, Report
from audit.report.findings.formats import FORMS, append_summary, write_report

SCHEMA = Path(__file__).parent / "schemas" / "sarif-2.1.0.json"
NASTY = [
    "a/::error file=x::boo.png", "a|b`c`<script>alert(1)</script>.png", "new\nline\r::warning::x.png",
    "\x1b[2J\x00.png",
    "100%.png", "@everyone #1 [x](http://evil).png", "ü—✓/日本.png", "]]>.png", "bad\udcffbyte.png", "a,b:c.png",
]  # fmt: skip


def make(names: list[str], severity: str = "error") -> Report:
    """A report with one finding for each name, and one check of every status."""
    found = [
        Finding(f"{name} (index {n}) is odd.", n, name, 1, float(n), 0.5, f"FROM samples WHERE index = {n}")
        for n, name in enumerate(names)
    ]
    found.append(Finding("The run as a whole is odd.", value=float("nan")))
    about = ("values", "What it looks for.")
    outcomes = [
        CheckOutcome("broken", *about, "error", "error", f"ValueError: {names[0] if names else ''}"),
        CheckOutcome("finite", *about, severity, "fail", "odd", found, len(found) + 7),  # type: ignore[arg-type]
        CheckOutcome("hooks", *about, "error", "skip", "no layers were requested"),
        CheckOutcome("blank", *about, "error", "pass", ""),
    ]
    return Report("20260101-000000-abcdef", names[0] if names else None, 60, outcomes, root="/data", notes=names[:1])


def test_json_is_as_designed() -> None:
    reported = json.loads(FORMS["json"](make(NASTY[:1])))
    assert list(reported) == ["run_id", "passed", "checks"]
    assert reported["passed"] is False
    assert {check["status"] for check in reported["checks"]} == {"pass", "fail", "skip", "error"}
    for check in reported["checks"]:
        assert list(check) == ["check", "severity", "status", "message", "findings"]
    assert list(reported["checks"][1]["findings"][0]) == ["index", "source", "stage", "value", "message"]
    assert reported["checks"][1]["findings"][-1]["value"] is None


def test_text_names_the_table_of_findings_only_if_they_are_stored() -> None:
    report = make(["a.png"])
    assert "FROM findings" not in FORMS["text"](report)
    assert "7 more: see --format json" in FORMS["text"](report)
    report.is_stored = True
    assert "7 more: audit sql \"FROM findings WHERE check_name = 'finite'\"" in FORMS["text"](report)


def test_sarif_is_valid_and_names_each_file() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    reported = json.loads(FORMS["sarif"](make(NASTY)))
    schema = json.loads(SCHEMA.read_text())
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    assert not [error.message for error in validator(schema).iter_errors(reported)]
    results = reported["runs"][0]["results"]
    assert len(results) == len(NASTY) + 1
    # Uploads refuse a result without a file, and a path that is absolute or escapes.
    uris = [result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in results]
    assert all(uri and not uri.startswith(("/", "..")) and re.fullmatch(r"[\w.~%/()!*'+-]+", uri) for uri in uris)
    assert results[-1]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "audit.toml"
    assert len({result["partialFingerprints"]["auditFinding/v1"] for result in results}) == len(results)
    assert reported["runs"][0]["invocations"][0]["executionSuccessful"] is False


def test_sarif_schema_refuses_what_is_wrong() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    reported = json.loads(FORMS["sarif"](make(NASTY)))
    reported["runs"][0]["results"][0]["level"] = "catastrophe"
    schema = json.loads(SCHEMA.read_text())
    assert not jsonschema.validators.validator_for(schema)(schema).is_valid(reported)


def test_junit_has_a_case_for_each_file() -> None:
    root = ET.fromstring(FORMS["junit"](make(NASTY)))
    suites = {suite.get("name"): suite for suite in root}
    assert set(suites) == {"broken", "finite", "hooks", "blank"}
    assert suites["broken"].find("testcase/error") is not None
    assert suites["hooks"].find("testcase/skipped") is not None
    assert len(suites["blank"].findall("testcase")) == 1
    assert len(suites["blank"].find("testcase")) == 0
    # One for each name, one for the run as a whole, one that counts the rest.
    assert len(suites["finite"].findall("testcase/failure")) == len(NASTY) + 2
    assert suites["finite"].get("failures") == str(len(NASTY) + 2)
    assert suites["finite"].get("tests") == str(len(NASTY) + 2)


@pytest.mark.parametrize("severity", ["error", "warning"])
def test_junit_is_what_the_schemas_of_its_readers_have_in_common(severity: str) -> None:
    xmlschema = pytest.importorskip("xmlschema")
    schema = xmlschema.XMLSchema(str(SCHEMA.parent / "junit-common.xsd"))
    schema.validate(FORMS["junit"](make(NASTY, severity)))
    schema.validate(FORMS["junit"](make([])))
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        schema.validate(FORMS["junit"](make(NASTY[:1])).replace("<testcase ", '<testcase file="a.png" '))


def test_junit_names_each_case_once() -> None:
    """GitLab knows a case by its class name and its name, and drops all but the first of several."""
    report = make(NASTY[:2])
    outcome = next(outcome for outcome in report.outcomes if outcome.check == "finite")
    outcome.findings = [*outcome.findings, *outcome.findings, replace(outcome.findings[0], message="another finding")]
    root = ET.fromstring(FORMS["junit"](report))
    names = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert len(set(names)) == len(names)
    assert len([name for name in names if name[0] == "audit.values.finite"]) == len(outcome.findings) + 1


def test_junit_does_not_fail_for_less_than_was_asked() -> None:
    root = ET.fromstring(FORMS["junit"](make(NASTY[:2], severity="warning")))
    suite = next(suite for suite in root if suite.get("name") == "finite")
    assert NASTY[0] in (suite.findtext("system-out") or "")
    assert suite.get("failures") == "0"
    assert not suite.findall("testcase/failure")  # nor does the line that counts the rest


def test_annotations_cannot_be_forged() -> None:
    text = FORMS["github"](make(NASTY))
    commands = [line for line in text.splitlines() if line.startswith("::")]
    # Ten of a check, one that counts the rest, one for the broken check: nothing that a name smuggled in.
    assert len(commands) == 12
    assert all(re.match(r"::(error|warning|notice) (file=[^,:]+,)?title=[a-z]+::", line) for line in commands)
    assert "boo.png::" not in text


def test_markdown_is_inert(tmp_path: Path) -> None:
    text = FORMS["markdown"](make(NASTY))
    assert "<script>" not in text
    assert "@everyone" not in text
    assert "](http" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "is odd" in line and "finite" not in line]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)
    append_summary(make(NASTY), str(tmp_path / "summary.md"))
    append_summary(make(NASTY), str(tmp_path / "summary.md"))
    assert (tmp_path / "summary.md").read_text(encoding="utf-8").count("### audit check") == 2


def test_text_moves_no_cursor() -> None:
    text = FORMS["text"](make(NASTY))
    assert "\x1b" not in text
    assert "\x00" not in text
    assert len(text.splitlines()) == len(FORMS["text"](make(["plain.png"] * len(NASTY))).splitlines())


@pytest.mark.slow
@given(st.lists(st.text(max_size=30), max_size=4), st.sampled_from(sorted(FORMS)))
def test_any_name_can_be_written(names: list[str], form: str) -> None:
    text = FORMS[form](make(names))
    assert text.endswith("\n")
    if form in ("json", "sarif"):
        json.loads(text)
    if form == "junit":
        ET.fromstring(text.encode("utf-8", "backslashreplace"))


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    from audit.errors import UsageError

    write_report(make(NASTY), str(tmp_path / "out.sarif"), "sarif")
    json.loads((tmp_path / "out.sarif").read_text(encoding="utf-8"))
    with pytest.raises(UsageError, match="could not be written"):
        write_report(make(NASTY), str(tmp_path / "missing" / "out.json"), "json")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.sarif"]
