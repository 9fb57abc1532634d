"""One cause that touches every sample is one finding, with a count and an example, not a list of all samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checks_contracts import check_outcome, outcome_of
from checks_faults import many_classes
from checks_world import LAST, digest, grade, world

from audit.checks.config import parse_configuration
from audit.checks.runner import run_checks

CONTRACT = {"contract": {"Normalize": {"max": 1.0}}}


def test_a_contract_that_all_outputs_break_is_one_finding(tmp_path: Path) -> None:
    made = world()
    for row in made.outputs(LAST):
        row["max"] = 9.0
    store = made.write(tmp_path / "lineage")
    outcome = outcome_of(store, "stage_contract", CONTRACT)
    assert len(outcome.findings) == outcome.total == 1
    assert outcome.findings[0].message.startswith(
        "All 60 outputs of Normalize break a rule: the contract says max <= 1.0, and bird/000.png"
    )
    check_outcome(store, outcome)


def test_a_contract_that_a_few_outputs_break_names_each(tmp_path: Path) -> None:
    made = world()
    for row in made.outputs(LAST):
        row["max"] = 9.0 if row["index"] < 3 else 0.5
    outcome = outcome_of(made.write(tmp_path / "lineage"), "stage_contract", CONTRACT)
    assert [finding.index for finding in outcome.findings] == [0, 1, 2]


def test_a_dataset_whose_files_are_all_renamed_is_one_finding(tmp_path: Path) -> None:
    store = world(name="before").write(tmp_path / "lineage")
    renamed = world(name="now")
    for row in renamed.tables["samples"]:
        row["source"] = row["source"].replace(".png", ".jpg")
    renamed.sample(7)["label"] = 2
    renamed.write(store)
    (outcome,) = run_checks(str(store), "now", baseline="before", only=["dataset_changed"]).outcomes
    (finding,) = outcome.findings
    assert finding.message == (
        "All 60 sources have other names than in before, and the same bytes: bird/000.png is now bird/000.jpg. "
        "1 of them has another label."
    )
    check_outcome(store, outcome)


def test_a_dataset_whose_files_are_all_other_ones_has_one_finding_of_each_kind(tmp_path: Path) -> None:
    store = world(name="before").write(tmp_path / "lineage")
    other = world(name="now")
    for row in other.tables["samples"]:
        row["source"], row["source_digest"] = (
            row["source"].replace(".png", ".jpg"),
            digest(row["index"], "new", size=64),
        )
    other.sample(3).update(source="bird/003.png")
    other.write(store)
    (outcome,) = run_checks(str(store), "now", baseline="before", only=["dataset_changed"]).outcomes
    assert [finding.message for finding in outcome.findings] == [
        "59 of 60 sources are new, against before, such as bird/000.jpg.",
        "59 of 60 sources are gone, against before, such as bird/000.png.",
        "bird/003.png has other bytes, against before.",
    ]


def test_a_drift_is_reported_where_it_begins(tmp_path: Path) -> None:
    store = world(name="before").write(tmp_path / "lineage")
    darker = world(name="now")
    for row in darker.tables["stage_outputs"]:
        if row["stage"] >= 1:
            row["mean"] = row["mean"] / 4 - 9
    darker.stage(1)["parameters"] = '{"size": [28]}'
    darker.write(store)
    report = run_checks(str(store), "now", baseline="before", only=["drift", "pipeline_changed"])
    drift = report.outcome("drift")
    (finding,) = drift.findings
    assert finding.stage == 1
    assert finding.message.startswith("The mean of Resize has drifted")
    assert finding.message.endswith("The same statistic of ToTensor and Normalize after it has drifted too.")
    assert drift.severity == "info", "a consequence of the changed pipeline"
    alone = run_checks(str(store), "now", baseline="before", only=["drift"]).outcome("drift")
    assert alone.severity == "warning"


def test_what_follows_from_a_changed_pipeline_is_a_note(tmp_path: Path) -> None:
    store = world(name="before").write(tmp_path / "lineage")
    changed = world(name="now")
    for row in changed.outputs(LAST):
        row["max"] = 9.0
    changed.stage(LAST)["parameters"] = '{"mean": [9.0]}'
    changed.write(store)
    config = parse_configuration({"checks": {"stage_contract": CONTRACT}}, None)
    report = run_checks(
        str(store), "now", baseline="before", only=["stage_contract", "pipeline_changed"], config=config
    )
    assert report.outcome("pipeline_changed").severity == "error"
    assert report.outcome("stage_contract").severity == "info"
    assert not report.passed


def test_many_samples_that_one_stage_spoils_are_one_finding_of_each_check(tmp_path: Path) -> None:
    made = world()
    for row in made.outputs(LAST):
        # Fewer than half of the samples: the stage is the cause, whatever their share.
        if row["index"] < 25:
            row["min"] = row["max"] = 0.0
        elif row["index"] < 50:
            row["nonfinite"] = 3
    store = made.write(tmp_path / "lineage")
    for check, words in (
        ("blank", "was made blank by Normalize: every value is 0. The same holds for 24 more."),
        ("finite", "3 values are NaN or infinite from Normalize on. The same holds for 24 more."),
    ):
        outcome = outcome_of(store, check)
        (finding,) = outcome.findings
        assert finding.message.endswith(words)
        assert outcome.total == 1
        check_outcome(store, outcome)


def test_few_samples_that_a_stage_spoils_are_named_each(tmp_path: Path) -> None:
    made = world()
    for row in made.outputs(LAST):
        if row["index"] < 4:
            row["min"] = row["max"] = 0.0
    assert [finding.index for finding in outcome_of(made.write(tmp_path / "lineage"), "blank").findings] == [0, 1, 2, 3]


def test_samples_that_fail_for_one_reason_are_one_finding(tmp_path: Path) -> None:
    made = world()
    for row in made.tables["samples"][:30]:
        row |= {"status": "failed", "failed_stage": "Normalize", "error": f"ValueError: {row['index']} is not a mean"}
    made.tables["samples"][40] |= {"status": "failed", "failed_stage": "load", "error": "OSError: cut off"}
    outcome = outcome_of(made.write(tmp_path / "lineage"), "unreadable")
    assert [finding.message for finding in outcome.findings] == [
        "bird/000.png (index 0) and 29 others failed at Normalize: ValueError: 0 is not a mean",
        "cat/040.png (index 40) failed at load: OSError: cut off",
    ]


@pytest.mark.parametrize("kept", ["train", "aaa", "zzz"])
def test_content_of_two_splits_is_reported_once_for_the_one_that_is_evaluated(tmp_path: Path, kept: str) -> None:
    made = world()
    for row in made.tables["samples"]:
        row["split"] = kept if row["index"] < 40 else "test"
    for index in (2, 3, 50):
        made.sample(index).update(source_digest=made.sample(2)["source_digest"], label=0, label_name="bird")
    store = made.write(tmp_path / "lineage")
    (leaked,) = outcome_of(store, "leakage").findings
    assert (leaked.index, leaked.source) == (50, made.sample(50)["source"])
    assert f"has the same content as {made.sample(2)['source']} (index 2, split {kept})" in leaked.message
    assert [finding.index for finding in outcome_of(store, "duplicates").findings] == [3]


def test_where_some_samples_have_no_split_all_copies_are_duplicates(tmp_path: Path) -> None:
    made = world()
    for row in made.tables["samples"][:40]:
        row["split"] = None
    made.sample(50).update(source_digest=made.sample(2)["source_digest"], label=1, label_name="cat")
    store = made.write(tmp_path / "lineage")
    assert [finding.index for finding in outcome_of(store, "duplicates").findings] == [50]
    conflicts = [finding.message for finding in outcome_of(store, "conflicting_labels").findings]
    assert "(index 50, split test)" in conflicts[1]


def test_blank_pictures_are_not_also_duplicates_with_other_labels(tmp_path: Path) -> None:
    made = world()
    for index in (2, 22, 50):
        made.sample(index)["source_digest"] = made.sample(2)["source_digest"]
        for stage in range(LAST + 1):
            made.output(index, stage).update(min=0.0, max=0.0, mean=0.0, std=0.0)
    made.sample(24).update(source_digest=made.sample(4)["source_digest"])
    store = made.write(tmp_path / "lineage")
    assert [finding.index for finding in outcome_of(store, "blank").findings] == [2, 22, 50]
    assert [finding.index for finding in outcome_of(store, "duplicates").findings] == [24]
    assert [finding.index for finding in outcome_of(store, "conflicting_labels").findings] == [4, 24]


@pytest.mark.parametrize("count", [60, 40])
def test_permuted_classes_are_one_finding(tmp_path: Path, count: int) -> None:
    """All else that is wrong with the predictions follows from it; of 10 classes, 40 samples are enough."""
    made = world(count)
    order = [3, 7, 1, 0, 9, 2, 5, 8, 4, 6]
    many_classes(made, 10, samples=count // 10, order=lambda label: order[label])
    judged = ["accuracy", "calibration", "class_order", "head", "label_issues", "per_class_accuracy", "weak_segments"]
    report = run_checks(str(made.write(tmp_path / "lineage")), only=judged)
    (failed,) = [o for o in report.outcomes if o.status == "fail" and o.severity != "info"]
    assert (failed.check, failed.total) == ("class_order", 1)
    assert "if classes were permuted" in failed.message
    assert (report.outcome("accuracy").status == "fail") == (count >= 50)


def test_a_model_that_guesses_few_samples_of_many_classes_is_not_permuted(tmp_path: Path) -> None:
    made = world(40)
    guesses = np.random.default_rng(0).permutation(40) % 20
    for row, guess in zip(made.tables["predictions"], guesses.tolist(), strict=True):
        grade(row, row["index"] % 20, [9.0 * (n == guess) for n in range(20)])
    made.run.classes = [f"class {n}" for n in range(20)]
    assert outcome_of(made.write(tmp_path / "lineage"), "class_order").status == "pass"
