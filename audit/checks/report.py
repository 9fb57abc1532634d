"""The outcomes of the checks, worst first, and whether the run passes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from audit.checks.base import SEVERITIES, Finding, Severity, Status
from audit.display import NotebookView
from audit.plainjson import JsonObject
from audit.tables import FindingRow


@dataclass(slots=True)
class CheckOutcome:
    """The outcome of one check."""

    check: str
    group: str
    description: str
    severity: Severity
    status: Status
    message: str
    findings: list[Finding] = field(default_factory=list)
    #: The number of findings, including those that are not listed.
    total: int = 0
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def severity_of(self, finding: Finding) -> Severity:
        """Return the severity of one finding."""
        return finding.severity or self.severity

    def fails(self, at: Severity) -> bool:
        """Return whether this outcome fails the report, if findings of severity `at` or worse do."""
        if self.status == "error":
            return True
        return self.status == "fail" and SEVERITIES.index(self.severity) >= SEVERITIES.index(at)

    @property
    def rank(self) -> tuple[int, int, str]:
        """Return the sort key: worst first."""
        order = {"error": 0, "fail": 0, "skip": 1, "pass": 2}[self.status]
        weight = -len(SEVERITIES) if self.status == "error" else -SEVERITIES.index(self.severity)
        return order, weight if order == 0 else 0, self.check


@dataclass(slots=True)
class Report(NotebookView):
    """The outcomes of all checks of one run."""

    run_id: str
    run_name: str | None
    samples: int
    outcomes: list[CheckOutcome]
    fail_on: Severity = "error"
    baseline: str | None = None
    #: Whether the findings are in the store.
    is_stored: bool = False
    #: Where the sources are, for formats that name files.
    root: str | None = None
    #: The file that findings without a source are shown at: the pipeline, or the configuration.
    place: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Return whether there is no finding of severity `fail_on` or worse and no check raised an error."""
        return not any(outcome.fails(self.fail_on) for outcome in self.outcomes)

    def outcome(self, check: str) -> CheckOutcome:
        """Return the outcome of one check."""
        return next(outcome for outcome in self.outcomes if outcome.check == check)

    def with_status(self, *statuses: Status) -> list[CheckOutcome]:
        """Return the outcomes of some statuses, worst first."""
        return [outcome for outcome in self.outcomes if outcome.status in statuses]

    def as_json(self) -> JsonObject:
        """Return what `audit check --format json` prints."""
        return {
            "run_id": self.run_id,
            "passed": self.passed,
            "checks": [
                {
                    "check": outcome.check,
                    "severity": outcome.severity,
                    "status": outcome.status,
                    "message": outcome.message,
                    "findings": [_finding_json(finding) for finding in outcome.findings],
                }
                for outcome in self.outcomes
            ],
        }

    def rows(self) -> Iterable[FindingRow]:
        """Yield the rows of table `findings`: one for each finding, and one for a check without any."""
        for outcome in self.outcomes:
            nothing = Finding(outcome.message, severity=outcome.severity)
            for finding in outcome.findings or [nothing]:
                yield {
                    "run_id": self.run_id,
                    "check_name": outcome.check,
                    "severity": outcome.severity_of(finding),
                    "status": outcome.status,
                    "message": finding.message,
                    "index": finding.index,
                    "source": finding.source,
                    "stage": finding.stage,
                    "value": finding.value,
                    "threshold": finding.threshold,
                    "evidence": json.dumps({"sql": finding.sql}) if finding.sql else None,
                }


def _finding_json(finding: Finding) -> JsonObject:
    return {
        "index": finding.index,
        "source": finding.source,
        "stage": finding.stage,
        "value": finding.value,
        "message": finding.message,
    }
