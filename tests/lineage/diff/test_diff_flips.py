"""Predictions that flip, each with its cause: the digits and their model, with one thing changed at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image
from places import CHECKPOINT, DIGITS, PIPELINE

from audit.engines.local import record_locally
from audit.engines.request import RunRequest
from audit.lineage.diff.diff import diff
from audit.records import Run
from audit.store.read.reader import Reader


@dataclass
class Digits:
    """A few digits, and a baseline run of the model over them."""

    images: Path
    store: str
    baseline: Run

    def record(self, *, images: Path | None = None, pipeline: Path = PIPELINE, model: Path = CHECKPOINT) -> Run:
        request = RunRequest(
            dataset=str(images or self.images), model=str(model), pipeline=str(pipeline), store=self.store, workers=0
        )
        return record_locally(request)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Digits]:
    folder = tmp_path_factory.mktemp("flips")
    images = folder / "digits"
    for kind in sorted(DIGITS.iterdir()):
        (images / kind.name).mkdir(parents=True)
        for path in sorted(kind.glob("*.png"))[:6]:
            shutil.copy(path, images / kind.name / path.name)
    found = Digits(images, str(folder / "store"), None)  # type: ignore[arg-type]
    found.baseline = found.record()
    yield found
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_another_model_input_is_the_pipeline(digits: Digits, tmp_path: Path) -> None:
    text = PIPELINE.read_text().replace("mean=[0.306], std=[0.318]", "mean=[0.9], std=[0.05]")
    changed = tmp_path / "other_normalize_digits.py"
    changed.write_text(text)
    other = digits.record(pipeline=changed)
    with Reader(digits.store) as reader:
        found = diff(reader, digits.baseline.run_id, other.run_id)
        flips = reader.sql("FROM flips(?, ?)", parameters=[digits.baseline.run_id, other.run_id]).dicts()
    assert found.regressions > 0
    assert found.flips.counts["regressions"]["pipeline"] == found.regressions
    assert found.first_divergent_stage == {"Normalize": 60}
    lists = found.flips.lists
    assert len(flips) == sum(len(lists[kind]) for kind in ("regressions", "fixes", "other_changes"))
    assert {row["cause"] for row in flips} == {"pipeline"}
    change = found.flips.accuracy_b - found.flips.accuracy_a  # type: ignore[operator]
    assert change == pytest.approx((found.fixes - found.regressions) / 60)
    assert 0 < (found.flips.mcnemar_p or 0) < 1
    regression = lists["regressions"][0]
    assert regression["label"] == regression["predicted_a"] != regression["predicted_b"]
    per_class = found.flips.per_class
    assert sum(row["regressions"] for row in per_class) == found.regressions
    assert sum(row["samples_a"] for row in per_class) == 60


def test_the_same_input_and_other_logits_is_the_model(digits: Digits, tmp_path: Path) -> None:
    checkpoint = torch.load(CHECKPOINT, weights_only=True)
    checkpoint["state_dict"]["fc2.bias"] += torch.linspace(-6, 6, 10)
    torch.save(checkpoint, tmp_path / "other.pt")
    other = digits.record(model=tmp_path / "other.pt")
    with Reader(digits.store) as reader:
        found = diff(reader, digits.baseline.run_id, other.run_id)
    assert found.divergent == 0
    assert found.regressions > 0
    assert found.flips.counts["regressions"]["model"] == found.regressions


def test_input_and_model_both_changed_is_measured(digits: Digits, tmp_path: Path) -> None:
    """Each alone, then together: of the flips that both make, each has the cause that the runs of one change show."""
    pipeline = tmp_path / "both_normalize_digits.py"
    pipeline.write_text(PIPELINE.read_text().replace("mean=[0.306], std=[0.318]", "mean=[0.8], std=[0.1]"))
    checkpoint = torch.load(CHECKPOINT, weights_only=True)
    checkpoint["state_dict"]["fc2.bias"] += torch.linspace(-6, 6, 10)
    torch.save(checkpoint, tmp_path / "both.pt")
    runs = [
        digits.record(pipeline=pipeline),
        digits.record(model=tmp_path / "both.pt"),
        digits.record(pipeline=pipeline, model=tmp_path / "both.pt"),
    ]
    with Reader(digits.store) as reader:
        alone = [
            {row["index_b"] for row in diff(reader, digits.baseline.run_id, run.run_id).flips.lists["regressions"]}
            for run in runs[:2]
        ]
        found = diff(reader, digits.baseline.run_id, runs[2].run_id)
        unmeasured = diff(reader, digits.baseline.run_id, runs[2].run_id, derive=False)
    causes = {row["index_b"]: row["cause"] for row in found.flips.lists["regressions"]}
    assert len(causes) == found.regressions > 3
    for index, cause in causes.items():
        by_input, by_model = (index in one for one in alone)
        assert cause == ("both" if by_input == by_model else "model" if by_model else "pipeline")
    assert len(set(causes.values())) > 1
    assert any("was measured" in note for note in found.notes)
    assert unmeasured.flips.counts["regressions"]["undetermined"] == found.regressions

    (tmp_path / "both.pt").unlink()
    with Reader(digits.store) as reader:
        gone = diff(reader, digits.baseline.run_id, runs[2].run_id)
    assert gone.flips.counts["regressions"]["undetermined"] == found.regressions
    assert any("could not be measured" in note for note in gone.notes)


def test_other_bytes_are_the_data_and_another_label_the_labels(digits: Digits, tmp_path: Path) -> None:
    images = Path(shutil.copytree(digits.images, tmp_path / "images"))
    replaced, moved = sorted((images / "0").iterdir())[:2]
    Image.open(sorted((images / "7").iterdir())[0]).save(replaced)
    moved.rename(images / "5" / moved.name)
    other = digits.record(images=images)
    with Reader(digits.store) as reader:
        found = diff(reader, digits.baseline.run_id, other.run_id)
    assert found.counts["source_changed"] == 1
    assert found.counts["label_changed"] == found.counts["renamed"] == 1
    assert {cause: n for cause, n in found.flips.counts["regressions"].items() if n} == {"data": 1, "labels": 1}
    moved_row = next(row for row in found.flips.lists["regressions"] if row["label"] == 5)
    assert moved_row["predicted_a"] == moved_row["predicted_b"] == 0
