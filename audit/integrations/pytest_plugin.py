"""The pytest plugin: a recorded run as a fixture, and checks as assertions.

    def test_pipeline(audit_run):
        audit_run.assert_passes("finite", "coverage")

The run is one of a store (`audit_store`, `audit_run`), or recorded for the session from `audit_dataset`, `audit_model`
and `audit_pipeline`; each is an ini option and, with dashes, an option of the command line. Loading this costs nothing:
audit itself is imported when the fixture is first used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from audit.api import Store
    from audit.checks.report import Report
    from audit.records import Run

_OPTIONS = {
    "store": "the store that holds the run [default: $AUDIT_STORE, else ./lineage]",
    "run": "which run: an id, a name, latest [default: latest]",
    "config": "the configuration of the checks [default: audit.toml, else pyproject.toml's tool.audit]",
    "baseline": "a run or a baseline file to compare with",
    "dataset": "record this dataset for the session instead of reading a run",
    "model": "the model to record it with",
    "pipeline": "the pipeline to record it with",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add one ini option and one command line option for each setting."""
    group = parser.getgroup("audit", "a recorded pipeline run as a fixture")
    for name, text in _OPTIONS.items():
        group.addoption(f"--audit-{name}", metavar=name.upper(), help=text)
        parser.addini(f"audit_{name}", text)


class AuditRun:
    """A recorded run under test."""

    def __init__(self, store: Store, run: Run, config: str | None, baseline: str | None) -> None:
        self.store = store
        self.run = run
        self._config = config
        self._baseline = baseline

    def check(self, *checks: str) -> Report:
        """Run the named checks, or all that are configured, and return the report."""
        from audit.checks.config import load_configuration

        # pytest already executes the code of this folder, so the checks that its configuration names run too.
        configuration = load_configuration(self._config, trust=True)
        return self.store.check(self.run.run_id, config=configuration, baseline=self._baseline, only=checks)

    def assert_passes(self, *checks: str) -> Report:
        """Fail the test with the findings unless every named check passed; one that was skipped has not passed."""
        __tracebackhide__ = True
        from audit.report.findings.text import as_text

        report = self.check(*checks)
        # A named check must pass whatever its severity; others follow the configuration.
        failed = [o for o in report.outcomes if o.status != "pass"] if checks else not report.passed
        if failed:
            pytest.fail(as_text(report, verbose=True), pytrace=False)
        return report

    def sql(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query over this run."""
        return self.store.sql(query, run=self.run.run_id).dicts()


@pytest.fixture(scope="session")
def audit_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditRun]:
    """Yield the run that the options name, or one recorded for the session."""
    from audit.api import open as open_store
    from audit.errors import AuditError

    given = {name: _read_setting(request.config, name) for name in _OPTIONS}
    try:
        reference = given["run"]
        if given["dataset"]:
            from audit.api import run as record

            given["store"] = given["store"] or str(tmp_path_factory.mktemp("audit") / "lineage")
            recorded = record(
                given["dataset"], model=given["model"], pipeline=given["pipeline"], store=given["store"], workers=0
            )
            reference = recorded.run_id
        with open_store(given["store"]) as store:
            yield AuditRun(store, store.run(reference), given["config"], given["baseline"])
    except AuditError as error:
        pytest.fail(f"audit: {error}", pytrace=False)


def _read_setting(config: pytest.Config, name: str) -> str | None:
    found = config.getoption(f"--audit-{name}") or config.getini(f"audit_{name}")
    return str(found) if found else None
