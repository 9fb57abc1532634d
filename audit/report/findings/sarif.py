"""SARIF 2.1.0: each finding at its file, as code-scanning uploads take it.

GitHub refuses a result without a file, so what concerns the run as a whole is put at the pipeline or the
configuration. A fingerprint keeps a finding the same alert from one run to the next.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

from audit import __version__
from audit.checks.base import Finding
from audit.checks.report import CheckOutcome, Report
from audit.plainjson import JsonObject
from audit.report.findings.finding_location import path_of
from audit.texts import as_utf8

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def as_sarif(report: Report) -> str:
    """Return the whole document."""
    rules = [_rule(outcome) for outcome in report.outcomes]
    results = [
        _result(report, outcome, number, finding)
        for number, outcome in enumerate(report.outcomes)
        for finding in outcome.findings
    ]
    broken = [outcome for outcome in report.outcomes if outcome.status == "error"]
    invocation: dict[str, Any] = {"executionSuccessful": not broken}
    if broken:
        invocation["toolExecutionNotifications"] = [
            {
                "level": "error",
                "message": {"text": _text(f"{outcome.check} could not be run: {outcome.message}")},
                "associatedRule": {"id": outcome.check, "index": report.outcomes.index(outcome)},
            }
            for outcome in broken
        ]
    driver = {"name": "audit", "semanticVersion": __version__, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "automationDetails": {"id": "audit-check/"},
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    document = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _rule(outcome: CheckOutcome) -> JsonObject:
    return {
        "id": outcome.check,
        "shortDescription": {"text": _text(outcome.description)},
        "defaultConfiguration": {"level": _LEVELS[outcome.severity]},
        "properties": {"tags": [outcome.group]},
    }


def _result(report: Report, outcome: CheckOutcome, number: int, finding: Finding) -> JsonObject:
    identity = f"{outcome.check}\0{finding.source}\0{finding.stage}\0{finding.index if finding.source is None else ''}"
    known = {
        "index": finding.index,
        "stage": finding.stage,
        "value": finding.value if finding.value == finding.value else None,
        "threshold": finding.threshold,
        "sql": finding.sql,
    }
    place = {
        "artifactLocation": {"uri": quote(_text(path_of(report, finding)), safe="/")},
        "region": {"startLine": 1},
    }
    return {
        "ruleId": outcome.check,
        "ruleIndex": number,
        "level": _LEVELS[outcome.severity_of(finding)],
        "message": {"text": _text(finding.message)},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {
            "auditFinding/v1": hashlib.sha256(identity.encode("utf-8", "replace")).hexdigest()[:32]
        },
        "properties": {key: value for key, value in known.items() if value is not None and value not in _INFINITE},
    }


_INFINITE = (float("inf"), float("-inf"))


def _text(text: str) -> str:
    # Lone surrogates stand for bytes of a name that are not UTF-8; JSON readers refuse them.
    return as_utf8(text)
