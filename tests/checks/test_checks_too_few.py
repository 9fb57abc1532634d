"""What is too small to judge is skipped with the number that is needed, and chance alone is not a finding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checks_contracts import outcome_of
from checks_world import World, grade, world

from audit.checks.runner import run_checks
from audit.checks.shared.significance import binomial_tail, fewest_flips
from audit.lineage.diff.mcnemar import p_value

#: What each check says of 12 samples.
TOO_FEW = {
    "class_regressions": "the largest class has 4 samples in both runs; at least 10 are needed",
    "drift": "this run or before has fewer than 30 samples of each kind; both need 30",
    "losses": "12 samples have a loss in both runs; at least 30 are needed",
    "odd_scale": "a stage has 12 outputs; at least 50 are needed",
    "per_class_accuracy": "the largest class has 4 samples; at least 5 are needed",
    "calibration": "12 samples are graded; at least 100 are needed",
    "label_issues": "the run has 12 predictions with probabilities; at least 20 are needed",
    "shortcuts": "the run has 12 labelled pictures; at least 60 are needed",
    "weak_segments": "12 pictures are graded; at least 120 are needed",
}


def test_too_few_samples_are_skipped_with_the_number_needed(tmp_path: Path) -> None:
    for name in ("before", "now"):
        world(12, name=name).write(tmp_path / "lineage")
    report = run_checks(tmp_path / "lineage", "now", baseline="before", only=list(TOO_FEW), record=False)
    assert {one.check: (one.status, one.message) for one in report.outcomes} == {
        check: ("skip", said) for check, said in TOO_FEW.items()
    }


def test_what_was_left_out_is_a_note(tmp_path: Path) -> None:
    store = world(12).write(tmp_path / "lineage")
    assert "12 predictions are too few" in outcome_of(store, "head").message
    assert "no two classes have 5 samples" in outcome_of(store, "class_order").message


def _guess(made: World, rng: np.random.Generator) -> None:
    for row in made.tables["predictions"]:
        grade(row, row["label"], np.eye(3)[int(rng.integers(0, 3))].tolist())


@pytest.mark.parametrize("seed", range(12))
def test_a_model_that_guesses_is_not_shifted(tmp_path: Path, seed: int) -> None:
    """Of 15 samples, some of these models fit the label of a neighbour far better than their own."""
    made = world(15)
    _guess(made, np.random.default_rng(seed))
    store = made.write(tmp_path / "lineage")
    for check in ("alignment", "class_order"):
        assert outcome_of(store, check).status == "pass", check


def test_the_fewest_flips_reach_the_level() -> None:
    for level in (0.05, 0.01, 0.001, 0.01 / 7):
        least = fewest_flips(level)
        assert p_value(least, 0) <= level < p_value(least - 1, 0)


def test_the_binomial_tail_is_that_of_all_outcomes() -> None:
    assert binomial_tail(0, 12, 0.3) == pytest.approx(1)
    assert binomial_tail(2, 2, 0.5) == pytest.approx(0.25)
    assert binomial_tail(1, 3, 0.5) == pytest.approx(7 / 8)
