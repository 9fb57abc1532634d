"""Every planted fault is found by its check, at its file, index and stage; a clean run has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from checks_contracts import check_check, check_outcome, outcome_of
from checks_faults import FAULTS, Fault
from checks_world import world

from audit.checks.base import Check
from audit.checks.registry import all_checks
from audit.checks.runner import run_checks

#: Checks whose faults need files, payloads or torch, and are planted in their own test file.
ELSEWHERE = {"near_duplicates", "exif_orientation", "source_unchanged", "reproducible", "store", "sql"}


def test_there_are_many_faults() -> None:
    assert len(FAULTS) >= 40
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.name)
def test_every_check_keeps_the_contract_and_has_a_planted_fault(check: type[Check]) -> None:
    check_check(check)
    planted = {fault.check for fault in FAULTS}
    assert check.name in planted or check.name in ELSEWHERE
    assert not (check.name in planted and check.name in ELSEWHERE)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_planted_fault_is_found(fault: Fault, tmp_path: Path) -> None:
    store = tmp_path / "lineage"
    if fault.baseline:
        world(name="before").write(store)
    broken = world(name="now")
    fault.plant(broken)
    broken.write(store)
    outcome = outcome_of(store, fault.check, fault.config, "before" if fault.baseline else None)
    assert outcome.status == "fail", outcome.message
    found = [
        finding
        for finding in outcome.findings
        if (fault.index is None or finding.index == fault.index)
        and (fault.stage is None or finding.stage == fault.stage)
        and fault.says in finding.message
    ]
    assert found, [finding.message for finding in outcome.findings]
    if fault.index is not None and fault.index < 60 and found[0].source is not None:
        assert found[0].source == broken.sample(fault.index)["source"]
    if fault.severity:
        assert outcome.severity == fault.severity
    check_outcome(store, outcome)


def test_a_clean_run_has_no_finding_at_all(tmp_path: Path) -> None:
    store = tmp_path / "lineage"
    world(name="before").write(store)
    world(name="now").write(store)
    report = run_checks(str(store), baseline="before", fail_on="info")
    assert report.passed
    assert not report.with_status("fail", "error")
    assert {outcome.check for outcome in report.with_status("skip")} == {
        *("dead_layers", "exploding_layers", "hooks"),  # no layer was recorded
        *("exif_orientation", "source_unchanged", "reproducible", "near_duplicates"),  # no file is there
        "leakage",  # one split
        "calibration",  # too few samples
    }


def test_clean_layers_pass(tmp_path: Path) -> None:
    from checks_faults import _activation

    clean = world()
    clean.run.recipe = {"layers": ["conv1", "fc"]}
    clean.tables["activations"] = [_activation(layer, step) for layer in ("conv1", "fc") for step in range(3)]
    store = clean.write(tmp_path / "lineage")
    for name in ("hooks", "dead_layers", "exploding_layers"):
        assert outcome_of(store, name).status == "pass"
