"""What is unusual and right: each case once failed a build, or hid a fault, that it must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks_contracts import outcome_of
from checks_faults import many_classes
from checks_pictures import picture
from checks_world import LAST, World, digest, grade, world
from PIL import Image

from audit.checks.runner import run_checks


def _two_loaders(made: World) -> None:
    """The second half of the samples comes from a second loader, whose indices begin at 0 again."""
    for table in ("samples", "stage_outputs", "predictions"):
        for row in made.tables[table]:
            second = row["index"] >= 30
            row.update(index=row["index"] - 30, visit=1) if second else None
            if table == "samples":
                row["split"] = "val" if second else "train"


def test_the_second_loader_of_a_run_is_looked_at_and_named(tmp_path: Path) -> None:
    made = world()
    _two_loaders(made)
    first, second = (next(r for r in made.tables["samples"] if (r["index"], r["visit"]) == (4, n)) for n in (0, 1))
    second.update(source_digest=first["source_digest"])
    row = next(r for r in made.tables["stage_outputs"] if (r["index"], r["visit"], r["stage"]) == (7, 1, 2))
    row["nonfinite"] = 3
    store = made.write(tmp_path / "lineage")
    for check, source in (("leakage", second["source"]), ("finite", "cat/037.png")):
        assert [finding.source for finding in outcome_of(store, check).findings] == [source], check
    assert not outcome_of(store, "duplicates").findings  # a copy in another split is what leakage reports
    assert outcome_of(store, "coverage").total == 30  # the indices 30–59 of one loader, which are not there


def test_what_a_sampler_left_out_of_the_first_epoch_is_looked_at(tmp_path: Path) -> None:
    made = world()
    for table in ("samples", "stage_outputs", "predictions"):
        later = [row | {"epoch": 1} for row in made.tables[table]]
        made.tables[table] = [row for row in made.tables[table] if row["index"] != 50] + later
    made.sample(50).update(source_digest=made.sample(2)["source_digest"])
    found = outcome_of(made.write(tmp_path / "lineage"), "duplicates").findings
    assert [(finding.index, finding.source) for finding in found] == [(50, "dog/050.png")]


def test_frames_of_one_file_are_not_copies_of_each_other(tmp_path: Path) -> None:
    made = world()
    for row in made.tables["samples"]:
        row.update(source=f"clip-{row['index'] // 20}.npy", source_digest=digest("clip", row["index"] // 20, size=64))
    made.output(33, 0)["digest"] = made.output(21, 0)["digest"]  # but this frame is one
    made.sample(33)["label"] = made.sample(21)["label"]
    found = outcome_of(made.write(tmp_path / "lineage"), "duplicates").findings
    assert [finding.index for finding in found] == [33]
    assert outcome_of(tmp_path / "lineage", "conflicting_labels").status == "pass"


def test_a_copy_without_a_label_conflicts_with_none(tmp_path: Path) -> None:
    made = world()
    for index in (10, 20, 21):
        made.sample(index)["source_digest"] = made.sample(10)["source_digest"]
    made.sample(20).update(label=None, label_name=None)
    found = outcome_of(made.write(tmp_path / "lineage"), "conflicting_labels").findings
    assert [finding.index for finding in found] == [10, 21]


def test_leakage_of_samples_without_files(tmp_path: Path) -> None:
    for name, shift in (("train", 0), ("test", 58)):
        made = world(name=name)
        for row in made.tables["samples"]:
            row.update(source=f"dataset://{row['index']}", root=None, source_digest=None)
        for row in made.outputs(0):
            row["digest"] = digest("content", row["index"] + shift)
        made.write(tmp_path / "lineage")
    found = outcome_of(tmp_path / "lineage", "leakage", {"other": "train"}).findings
    assert [finding.index for finding in found] == [0, 1]


def test_a_model_for_a_rare_class_is_better_than_guessing(tmp_path: Path) -> None:
    made = world()
    for row in made.tables["predictions"]:
        rare = row["index"] % 20 == 0
        taken = rare or row["index"] % 10 == 5  # it finds them all, and takes some others for one
        grade(row, int(rare), [0.0, 2.0, -3.0] if taken else [2.0, 0.0, -3.0])
    assert outcome_of(made.write(tmp_path / "lineage"), "accuracy").status == "pass"


def test_a_regression_has_no_classes(tmp_path: Path) -> None:
    made = world()
    for row in made.tables["predictions"]:
        row.update(logits=[30.0], probabilities=[0.0, 1.0], predicted=1, confidence=1.0, correct=False, label=30)
    for row in made.tables["samples"]:
        row.update(label=20 + row["index"], label_name=None)
    made.run.classes = None
    report = run_checks(made.write(tmp_path / "lineage"), only=["label_range", "accuracy", "calibration"])
    assert {(o.status, o.message) for o in report.outcomes} == {
        ("skip", "the model has one output, and the labels are not classes")
    }


def test_a_few_guesses_are_no_other_class_order(tmp_path: Path) -> None:
    made = world(12)
    for row in made.tables["predictions"]:
        right = row["index"] % 3 == 0
        label = row["index"] % 2
        grade(row, label, [1.0, 0.0, -9.0] if (label == 0) == right else [0.0, 1.0, -9.0])
    assert outcome_of(made.write(tmp_path / "lineage"), "class_order").status == "pass"


def test_a_layer_that_gives_one_number_is_not_dead(tmp_path: Path) -> None:
    made = world()
    made.tables["activations"] = [
        {
            "epoch": 0, "step": n // 8, "index": n, "visit": 0, "layer": layer, "layer_type": "Linear",
            "direction": "forward", "port": "output.0", "shape": [1], "min": value, "max": value, "zero_fraction": 0.0,
        }
        for n in range(16)
        for layer, value in (("head", 0.1 * n), ("stuck", 0.5))
    ]  # fmt: skip
    found = outcome_of(made.write(tmp_path / "lineage"), "dead_layers").findings
    assert ["stuck" in finding.message for finding in found] == [True]


def test_one_hot_codes_are_not_clipped(tmp_path: Path) -> None:
    made = world()
    for row in made.outputs(1):
        row.update(kind="tensor", dtype="int64", shape=[12], min=1.0, max=50.0, mean=20.0, zeros=0, mode=None)
    for row in made.outputs(2):
        row.update(shape=[12, 64], min=0.0, max=1.0, mean=1 / 64, zeros=12 * 63)
    assert outcome_of(made.write(tmp_path / "lineage"), "clipped").status == "pass"


def test_files_that_go_below_zero_were_not_normalised(tmp_path: Path) -> None:
    made = world()
    for row in (*made.outputs(0), *made.outputs(1), *made.outputs(2)):
        row.update(min=-1000.0, max=900.0, mean=10.0, dtype="float32")
    made.stage(3)["parameters"] = '{"mean": [0.0], "std": [500.0]}'
    assert outcome_of(made.write(tmp_path / "lineage"), "scale").status == "pass"


def test_nan_in_an_earlier_epoch_is_reported(tmp_path: Path) -> None:
    made = world()
    for table in ("samples", "stage_outputs", "predictions"):
        made.tables[table] += [row | {"epoch": 1} for row in made.tables[table]]
    made.prediction(9)["loss"] = float("nan")
    made.prediction(8)["input_digest"] = made.output(7, LAST)["digest"]
    store = made.write(tmp_path / "lineage")
    assert [finding.index for finding in outcome_of(store, "finite").findings] == [9]
    assert [finding.index for finding in outcome_of(store, "alignment").findings] == [8]


def test_a_composed_picture_has_lost_nothing(tmp_path: Path) -> None:
    from audit.api import run

    for number in range(4):
        pixels = np.asarray(picture(number).convert("RGBA")).copy()
        pixels[:9, :, 3] = 0
        (tmp_path / "data").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / f"data/{number}.png")
    (tmp_path / "pipeline.py").write_text(
        "from PIL import Image\n"
        "mode = 'keep'\n"
        "def composed(image):\n"
        "    white = Image.new('RGBA', image.size, (255, 255, 255, 255))\n"
        "    white.alpha_composite(image)\n"
        "    return white.convert('RGB')\n"
        "transform = [composed]\n"
    )
    run(tmp_path / "data", pipeline=tmp_path / "pipeline.py", store=tmp_path / "lineage", workers=0)
    assert outcome_of(tmp_path / "lineage", "alpha_dropped").status == "pass"


def test_many_failures_within_what_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audit.checks.context.MOST_FETCHED", 5)
    made = world()
    for index in range(9):
        made.fail(index, "load", "OSError: truncated")
    store = made.write(tmp_path / "lineage")
    status: list[Any] = [outcome_of(store, "unreadable", {"max_failed": most}).status for most in (6, 9)]
    assert status == ["fail", "pass"]


def test_two_classes_of_a_model_that_errs_everywhere_are_not_swapped(tmp_path: Path) -> None:
    """An inverted input made 0 look like 1 and 1 like 0, and was also wrong for all other digits."""
    made = world()
    many_classes(made, 10, samples=12, order=lambda label: {0: 1, 1: 0}.get(label, 5))
    assert outcome_of(made.write(tmp_path / "lineage"), "class_order").findings == []


@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_logits_that_are_many_times_too_large_are_found(tmp_path: Path, scale: float) -> None:
    """A model that is right in 97 % has a small calibration error however confident it is."""
    rng = np.random.default_rng(0)
    made = world(600)
    for row in made.tables["predictions"]:
        logits = rng.normal(0, 1, 3)
        # The label is drawn from the probabilities, so that without a factor the model is calibrated.
        logits[row["index"] % 3] += 5
        powers = np.exp(logits) / np.exp(logits).sum()
        grade(row, int(rng.choice(3, p=powers)), (scale * logits).tolist())
    outcome = outcome_of(made.write(tmp_path / "lineage"), "calibration")
    assert [finding.message[:17] for finding in outcome.findings] == (["The logits are ab"] if scale > 1 else [])
    if scale > 1:
        assert 10 < (outcome.findings[0].value or 0) < 40
