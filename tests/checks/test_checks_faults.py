"""Every planted fault is found by its check, at its file, index and stage; a clean run has none."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checks_contracts import check_check, check_outcome, outcome_of
from checks_faults import (
    FAULTS,
    Fault,
    _revisit,
    boxes,
    calls,
    draw,
    fire,
    many_classes,
    masks,
    segments,
    several_splits,
    shuffle,
    state_input,
    steps,
)
from checks_world import World, digest, world

from audit.checks.base import Check
from audit.checks.documentation import checks_page
from audit.checks.registry import all_checks
from audit.checks.runner import run_checks

#: Checks whose faults need files, payloads or torch, and are planted in their own test file.
PLANTED_IN_OTHER_FILES = {
    *("telling_words", "box_fit", "mask_fit"),
    *("near_duplicates", "exif_orientation", "source_unchanged", "reproducible", "store", "sql"),
    *("model_unchanged", "code_unchanged", "channel_order", "probe", "outliers", "overflow", "truncated"),
    *("displaced", "columns", "split_scale"),
}


def test_there_are_many_faults() -> None:
    assert len(FAULTS) >= 40
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.name)
def test_the_page_has_the_question_the_rule_and_the_assumptions_of_every_check(check: type[Check]) -> None:
    rows = [line.split("|") for line in checks_page().splitlines() if line.startswith("| `")]
    rows = [row for row in rows if f"`{check.name}`" in row[1]]
    assert any(len(row) == 6 and row[2].strip().endswith("?") and row[3].strip() and row[4].strip() for row in rows), (
        f"declare `question`, `rule` or `statistic`, and `assumes` on the class of {check.name}, then `make docs`"
    )


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.name)
def test_every_check_keeps_the_contract_and_has_a_planted_fault(check: type[Check]) -> None:
    check_check(check)
    planted = {fault.check for fault in FAULTS}
    assert check.name in planted or check.name in PLANTED_IN_OTHER_FILES, (
        "plant a fault for it: @fault in support/checks_faults.py"
    )
    assert not (check.name in planted and check.name in PLANTED_IN_OTHER_FILES)


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
    skipped = {outcome.check: outcome.message for outcome in report.with_status("skip")}
    expected = {
        *("dead_layers", "exploding_layers", "hooks"),  # no layer was recorded
        *(
            "exif_orientation",
            "source_unchanged",
            "reproducible",
            "near_duplicates",
            "channel_order",
            "outliers",
            "overflow",
            "truncated",
            "displaced",
            "telling_words",
        ),  # no file
        *("model_unchanged", "code_unchanged"),  # the run names no checkpoint and no code
        *("stable_load", "repeated_draws", "evaluation_mode"),  # one epoch, nothing drawn, no mode
        *("preprocessing", "probe"),  # no normalisation is stated, and --probe was not given
        *("leakage", "split_drift", "split_scale"),  # one split
        *("columns", "learning"),  # no rows of a table, and nothing was trained
        *("calibration", "weak_segments"),  # too few samples
        *(
            "target_boxes",
            "target_masks",
            "lost_boxes",
            "missed_by_size",
            "box_fit",
            "mask_fit",
        ),  # neither boxes nor masks
    }
    assert skipped.keys() == expected, (
        f"a new check should run here: see `needs` of its class; if it cannot, add it above: {skipped}"
    )


def test_clean_layers_pass(tmp_path: Path) -> None:
    from checks_faults import _activation

    clean = world()
    clean.run.recipe = {"layers": ["conv1", "fc"]}
    clean.tables["activations"] = [_activation(layer, step) for layer in ("conv1", "fc") for step in range(3)]
    store = clean.write(tmp_path / "lineage")
    for name in ("hooks", "dead_layers", "exploding_layers"):
        assert outcome_of(store, name).status == "pass"


CLEAN_WORLDS: dict[str, Callable[[World], None]] = {
    "stable_load": lambda w: _revisit(w),
    "repeated_draws": lambda w: draw(w, lambda index: index, epochs=2),
    "evaluation_mode": lambda w: calls(w),
    "preprocessing": lambda w: state_input(w, keeps_aspect=True),
    "target_boxes": lambda w: boxes(w),
    "missed_by_size": lambda w: boxes(w, lambda index, row: row.update(x2=60.0, y2=60.0) if index % 2 else None),
    "target_masks": lambda w: masks(w),
    "split_drift": lambda w: several_splits(w, 0.0),
    "weak_segments": lambda w: segments(w, wrong=False),
    "augmentation": lambda w: fire(w, 0.2),
    "loader_order": lambda w: shuffle(w, lambda index, epoch: index * (7, 11)[epoch] % 60),
    "class_order": lambda w: many_classes(w, 40, samples=1, order=lambda label: label),
}


@pytest.mark.parametrize("check", CLEAN_WORLDS)
def test_the_clean_twin_of_a_fault_passes(check: str, tmp_path: Path) -> None:
    clean = world()
    CLEAN_WORLDS[check](clean)
    outcome = outcome_of(clean.write(tmp_path / "lineage"), check)
    assert (outcome.status, outcome.findings) == ("pass", []), outcome.message


def test_training_mode_in_training_is_no_fault(tmp_path: Path) -> None:
    clean = world()
    steps(clean, "train", learning_rate=0.1)
    for row in clean.tables["samples"]:
        row["split"] = "train"
    assert outcome_of(clean.write(tmp_path / "lineage"), "evaluation_mode").status == "pass"


def test_random_loading_is_left_alone(tmp_path: Path) -> None:
    clean = world()
    draw(clean, lambda index: index, epochs=2)
    for row in clean.outputs(0):
        row["digest"] = digest(row["index"], row["epoch"])
    assert outcome_of(clean.write(tmp_path / "lineage"), "stable_load").status == "pass"


def test_labels_off_by_one_are_not_blamed_on_shifted_rows(tmp_path: Path) -> None:
    """In a folder's order the next label is the next class: only places where the label stays tell the two apart."""
    wrong = world()
    many_classes(wrong, 20, samples=6, order=lambda label: (label + 1) % 20)
    store = wrong.write(tmp_path / "lineage")
    assert outcome_of(store, "class_order").status == "fail"
    assert not [f for f in outcome_of(store, "alignment").findings if "shifted" in f.message]


def test_a_checkpoint_and_code_that_changed_are_named(tmp_path: Path) -> None:
    checkpoint, helper = tmp_path / "model.pt", tmp_path / "helpers.py"
    checkpoint.write_bytes(b"weights")
    helper.write_text("SIZE = 224\n")
    recorded = world()
    sha256 = hashlib.sha256(helper.read_bytes()).hexdigest()
    code = [{"module": "helpers", "file": str(helper), "sha256": sha256}]
    recorded.run.recipe = {"model": str(checkpoint), "code": code}
    recorded.run.model_digest = hashlib.sha256(b"weights").hexdigest()
    store = recorded.write(tmp_path / "lineage")
    for check, file, change in (("model_unchanged", checkpoint, b"other"), ("code_unchanged", helper, b"SIZE = 256\n")):
        assert outcome_of(store, check).status == "pass"
        file.write_bytes(change)
        outcome = outcome_of(store, check)
        assert (outcome.status, outcome.severity) == ("fail", "warning")
        assert str(file) in outcome.findings[0].message
        check_outcome(store, outcome)
    checkpoint.unlink()
    assert "no longer exists" in outcome_of(store, "model_unchanged").findings[0].message


def test_classes_that_change_by_chance_are_no_regression(tmp_path: Path) -> None:
    from checks_world import grade

    store = tmp_path / "lineage"
    world(name="before").write(store)
    now = world(name="now")
    for index in (1, 4, 2):  # two of one class and one of another turn wrong, of twenty each
        grade(now.prediction(index), now.sample(index)["label"], [3.0, 0.0, 0.0])
    now.write(store)
    assert outcome_of(store, "class_regressions", baseline="before").status == "pass"


@pytest.mark.parametrize(("split", "says"), [("test", "evaluation split"), (None, "did not see")])
def test_doubts_about_labels_say_whether_the_model_knew_the_samples(
    split: str | None, says: str, tmp_path: Path
) -> None:
    made = world()
    next(fault for fault in FAULTS if fault.check == "label_issues").plant(made)
    for row in made.tables["samples"]:
        row["split"] = split
    outcome = outcome_of(made.write(tmp_path / "lineage"), "label_issues")
    assert outcome.status == "fail"
    assert any(says in note for note in outcome.notes), outcome.notes


def test_labels_are_doubted_only_where_the_model_was_not_trained(tmp_path: Path) -> None:
    """A run of training: its samples are skipped, those of its evaluation split are judged alone."""
    for name, evaluated in (("training", False), ("both", True)):
        made = world(name=name)
        next(fault for fault in FAULTS if fault.check == "label_issues").plant(made)
        for row in made.tables["samples"]:
            row["split"] = "val" if evaluated and row["index"] >= 20 else "train"
        steps(made, "train", learning_rate=0.1)
        outcome = outcome_of(made.write(tmp_path / name), "label_issues")
        if evaluated:
            assert [finding.index for finding in outcome.findings] == [54]
        else:
            assert outcome.status == "skip"
            assert "not out of sample" in outcome.message


def test_the_page_shows_what_the_simulation_gives() -> None:
    """The cheapest row of bench/power.py, simulated again."""
    from bench.power import augmentation

    rng = np.random.default_rng(1)
    assert sum(augmentation(rng, 1_000, True) for _ in range(100)) >= 95
    assert not any(augmentation(rng, 1_000, False) for _ in range(100))
