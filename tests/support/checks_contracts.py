"""What every check must keep, whatever it judges: `check_check` is called for each of them."""

from __future__ import annotations

from pathlib import Path

from audit.checks.base import SEVERITIES, Check
from audit.checks.config import parse_configuration
from audit.checks.report import CheckOutcome
from audit.checks.runner import run_checks
from audit.store.read.reader import Reader


def check_check(check: type[Check]) -> None:
    """The declaration is whole: a name, one sentence, a severity, options of a known type with an explanation."""
    assert check.name.replace("_", "").isalpha()
    assert check.name.islower()
    assert check.description.endswith(".")
    assert len(check.description) < 200
    assert check.severity in SEVERITIES
    for key, option in check.options.items():
        assert option.help.endswith("."), key
        assert option.default is None or isinstance(option.default, option.type), key
        assert option.type in (int, float, bool, str, list, dict), key


def check_outcome(store: Path, outcome: CheckOutcome) -> None:
    """Every finding has a message that names its place, and evidence that `audit sql` can run."""
    with Reader(str(store)) as reader:
        for finding in outcome.findings:
            assert finding.message.strip()
            if finding.source is not None:
                assert finding.source in finding.message, f"name the source {finding.source} in: {finding.message}"
            if finding.sql is not None:
                reader.sql(finding.sql).fetchall()


def outcome_of(
    store: Path, name: str, options: dict[str, object] | None = None, baseline: str | None = None
) -> CheckOutcome:
    """What one check comes to."""
    configuration = parse_configuration({"checks": {name: options or {}}, "max_findings": 1_000}, None)
    return run_checks(str(store), config=configuration, only=[name], baseline=baseline, record=False).outcome(name)
