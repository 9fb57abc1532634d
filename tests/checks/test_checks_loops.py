"""Loops of unusual shape: streams, several labels, splits with other classes, training; each fault with its clean twin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checks_contracts import outcome_of
from checks_world import grade, world
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from audit.api import record
from audit.checks.report import CheckOutcome, Report
from audit.checks.runner import run_checks

COUNT = 200


def tables(seed: int) -> tuple[Tensor, Tensor]:
    """Rows of three classes that lie apart."""
    labels = torch.arange(COUNT) % 3
    noise = torch.randn(COUNT, 3, generator=torch.Generator().manual_seed(seed))
    return noise * 0.3 + 2 * functional.one_hot(labels, 3), labels


class Stream(IterableDataset[Any]):
    """Rows in the order in which they come: another one in each epoch, or from a generator that is read once."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.epoch = 0
        self.rows = self.read()

    def read(self) -> Iterator[tuple[Tensor, int]]:
        rows, labels = tables(0)
        order = np.random.default_rng(self.epoch).permutation(COUNT) if self.kind != "ordered" else range(COUNT)
        for n in order:
            yield rows[n], int(labels[n])

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        if self.kind == "read once":
            return self.rows
        self.epoch += 1
        return self.read()


def judge(place: Path, loaders: dict[str, Any], model: nn.Module | None = None, *, epochs: int = 1) -> Report:
    with record(place / "lineage") as run, torch.no_grad():
        recorded = run.model(model.eval()) if model is not None else None
        given = {split: run.loader(loader, split=split) for split, loader in loaders.items()}
        for _ in run.epochs(epochs):
            for loader in given.values():
                for batch in loader:
                    if recorded is not None:
                        recorded(batch[0])
    return run_checks(place / "lineage", record=False)


def failing(report: Report) -> dict[str, CheckOutcome]:
    """What is reported as a warning or an error, but for changes that audit did not see."""
    found = {one.check: one for one in report.outcomes if one.status in ("fail", "error") and one.severity != "info"}
    found.pop("stage_coverage", None)
    return found


@pytest.mark.parametrize("kind", ["shuffled", "ordered"])
def test_a_stream_with_another_order_in_each_epoch_is_no_finding(tmp_path: Path, kind: str) -> None:
    assert not failing(judge(tmp_path, {"train": DataLoader(Stream(kind), 20)}, epochs=2))


def test_a_stream_that_is_read_once_is_found(tmp_path: Path) -> None:
    found = failing(judge(tmp_path, {"train": DataLoader(Stream("read once"), 20)}, epochs=3))
    assert list(found) == ["coverage"]
    (finding,) = found["coverage"].findings
    assert finding.message.startswith(
        "The stream of train gave no item in epoch 1, as in 1 other epochs, and 200 in the longest"
    )


def test_a_stream_that_the_loop_stops_is_no_finding(tmp_path: Path) -> None:
    with record(tmp_path / "lineage") as run:
        loader = run.loader(DataLoader(Stream("shuffled"), 20), split="train")
        for epoch in run.epochs(2):
            for number, _ in enumerate(loader):
                if epoch and number == 1:
                    break
    assert not failing(run_checks(tmp_path / "lineage", record=False))


class Identity(nn.Module):
    """Answers with its input, as logits."""

    def forward(self, x: Tensor) -> Tensor:
        return 4 * x


@pytest.mark.parametrize("changed", [True, False])
def test_classes_of_one_split_in_another_order_are_found_there(tmp_path: Path, changed: bool) -> None:
    rows, labels = tables(1)
    other = (labels + 2) % 3 if changed else labels
    loaders = {
        "train": DataLoader(TensorDataset(*tables(0)), 20),
        "test": DataLoader(TensorDataset(rows, other), 20),
    }
    found = failing(judge(tmp_path, loaders, Identity()))
    assert list(found) == ["class_order"] * changed
    if changed:
        assert found["class_order"].message.startswith("Accuracy would rise in test from ")


def several_labels(seed: int) -> tuple[Tensor, Tensor]:
    scores = torch.randn(COUNT, 5, generator=torch.Generator().manual_seed(seed))
    return scores, (
        scores + 0.2 * torch.randn(scores.shape, generator=torch.Generator().manual_seed(seed + 9)) > 0
    ).float()


def invert(targets: Tensor) -> Tensor:
    changed = targets.clone()
    changed[:, 2] = 1 - changed[:, 2]
    return changed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda targets: targets[:, [1, 0, 2, 3, 4]], "The labels 0 and 1 are exchanged in test"),
        (lambda targets: targets.roll(1, 0), "Targets are shifted by one row in test: the predictions fit the labels of the sample after"),
        (invert, "The label 2 is inverted in test"),
        (lambda targets: targets, None),
    ],
)  # fmt: skip
def test_several_labels_that_do_not_fit_are_found(tmp_path: Path, change: Any, says: str | None) -> None:
    scores, targets = several_labels(1)
    loaders = {
        "train": DataLoader(TensorDataset(*several_labels(0)), 20),
        "test": DataLoader(TensorDataset(scores, change(targets)), 20),
    }
    found = failing(judge(tmp_path, loaders, Identity()))
    assert list(found) == ["class_order"] * (says is not None)
    assert says is None or found["class_order"].message.startswith(says)


def test_several_labels_that_go_together_are_no_finding(tmp_path: Path) -> None:
    """One label is nearly always there with another, and a third is never predicted."""
    scores, targets = several_labels(0)
    targets[:, 1], scores[:, 1] = targets[:, 0], scores[:, 0] + 0.1
    scores[:, 3] = -5
    loader = DataLoader(TensorDataset(scores, targets), 20)
    assert "class_order" not in failing(judge(tmp_path, {"test": loader}, Identity()))


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_model_that_is_still_trained_is_not_judged_by_its_confidence(tmp_path: Path, split: str) -> None:
    rows, labels = tables(0)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with record(tmp_path / "lineage") as run:
        recorded = run.model(model)
        loader = run.loader(DataLoader(TensorDataset(rows, labels), 20), split="train")
        for _ in run.epochs(2):
            for x, y in loader:
                optimizer.zero_grad()
                functional.cross_entropy(recorded(x), y).backward()
                optimizer.step()
        if split == "test":
            model.eval()
            for x, _ in run.loader(DataLoader(TensorDataset(*tables(1)), 20), split="test"):
                recorded(x)
    outcome = run_checks(tmp_path / "lineage", only=["calibration"], record=False).outcome("calibration")
    if split == "train":
        assert [outcome.status, outcome.message] == [
            "skip", "the model was trained between these predictions; record an evaluation split"
        ]  # fmt: skip
    else:
        assert outcome.status == "fail"


class StaleRows(Dataset[Any]):
    """Rows of which some are read at the index before them, so that one content has several labels."""

    def __init__(self, stale: int) -> None:
        self.rows, self.labels = tables(0)
        self.stale = stale

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.rows[index - (0 < index % 10 <= self.stale) * (index % 10)], int(self.labels[index])


@pytest.mark.parametrize("stale", [2, 0])
def test_content_with_several_labels_is_not_also_a_duplicate(tmp_path: Path, stale: int) -> None:
    report = judge(tmp_path, {"test": DataLoader(StaleRows(stale), 20)}, Identity())
    # A fifth of the labels is wrong, so that the model is too sure.
    assert list(failing(report)) == ["conflicting_labels", "calibration"] * bool(stale)
    if stale:
        duplicates = report.outcome("duplicates")
        assert [duplicates.severity, duplicates.total] == ["info", 40]
        assert "consequence of what conflicting_labels reports" in duplicates.notes[-1]


def test_content_with_the_same_label_twice_stays_a_duplicate(tmp_path: Path) -> None:
    rows, labels = tables(0)
    rows[:6] = rows[100].clone()
    rows[6:9] = rows[103].clone()
    labels[:6], labels[6:9], labels[103] = labels[100], labels[103], 2
    labels[6] = 1
    report = judge(tmp_path, {"test": DataLoader(TensorDataset(rows, labels), 20)})
    outcome = report.outcome("duplicates")
    assert outcome.severity == "warning"
    assert [finding.severity for finding in outcome.findings] == ["warning"] * 6 + ["info"] * 3


def test_a_file_that_is_gone_is_reported_once(tmp_path: Path) -> None:
    from PIL import Image

    from audit.api import run as run_dataset

    for number in range(6):
        folder = tmp_path / "data" / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    run_dataset(tmp_path / "data", store=tmp_path / "lineage")
    for file in (tmp_path / "data" / "0").iterdir():
        file.unlink()
    report = run_checks(tmp_path / "lineage", only=["source_unchanged", "reproducible"], record=False)
    assert report.outcome("source_unchanged").severity == "error"
    replayed = report.outcome("reproducible")
    assert [replayed.status, replayed.severity] == ["fail", "info"]


class Sentences(Dataset[Any]):
    """Sequences of which most batches have one of the greatest length."""

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> Any:
        length = 20 if index % 12 == 0 and index != 120 else 5 + index % 14
        return torch.arange(1, length + 1), torch.arange(1, length + 1) % 4


def pad(items: list[Any]) -> Any:
    return pad_sequence([x for x, _ in items], batch_first=True), pad_sequence([y for _, y in items], batch_first=True)


def test_a_batch_that_is_padded_less_than_most_is_no_finding(tmp_path: Path) -> None:
    report = judge(tmp_path, {"train": DataLoader(Sentences(), 12, collate_fn=pad)})
    assert report.outcome("stage_contract").status == "pass"


@pytest.mark.parametrize(("number", "share", "found"), [(-1, 4, 0), (-100, 4, 0), (-1, 60, 1), (None, 1, 1)])
def test_samples_without_a_label_are_not_classes(tmp_path: Path, number: int | None, share: int, found: int) -> None:
    """A number that many samples have beside all classes stands for no label; labels that are one too low do not."""
    rows, labels = tables(0)
    given = labels - 1 if number is None else torch.where(torch.arange(COUNT) % share == 0, number, labels)
    loader = DataLoader(TensorDataset(rows, given), 20)
    report = judge(tmp_path, {"train": loader}, Identity())
    assert report.outcome("label_range").total == found * (1 if number is None else 4)
    assert report.outcome("class_balance").status == "pass"


def waves(quiet: float) -> Tensor:
    """Sounds, of which every fifth is louder or quieter by a factor."""
    tones = torch.sin(torch.arange(50.0)[None] * torch.linspace(0.1, 1, COUNT)[:, None])
    loud = 0.2 + 0.6 * torch.rand(COUNT, 1, generator=torch.Generator().manual_seed(0))
    return tones * loud * torch.where(torch.arange(COUNT) % 5 == 0, quiet, 1.0)[:, None]


@pytest.mark.parametrize(
    ("factor", "scale"), [(32768.0, "32,768"), (255.0, "255"), (1.0, ""), (1e-4, ""), (3000.0, "")]
)
def test_a_group_of_sounds_that_was_not_scaled_is_found(tmp_path: Path, factor: float, scale: str) -> None:
    """Silence, or another loudness, has a factor of its own."""
    report = judge(tmp_path, {"train": DataLoader(TensorDataset(waves(factor)), 20)})
    outcome = report.outcome("odd_scale")
    assert [outcome.status, outcome.total] == (["fail", 1] if scale else ["pass", 0])
    assert outcome.message.startswith(f"40 of 200 samples have values about {scale} times as large") or not scale


def test_a_split_that_was_not_scaled_is_left_to_the_comparison_of_splits(tmp_path: Path) -> None:
    loaders = {
        name: DataLoader(TensorDataset(waves(1.0) * factor), 20) for name, factor in (("train", 1), ("test", 255))
    }
    assert judge(tmp_path, loaders).outcome("odd_scale").status == "pass"


def sure_answers(labels: Tensor, classes: int = 5) -> Tensor:
    """Logits of a model that is sure, and mostly right."""
    right = torch.rand(len(labels), generator=torch.Generator().manual_seed(2)) < 0.95
    noise = torch.rand(len(labels), classes, generator=torch.Generator().manual_seed(int(labels[:9].sum())))
    return 6.0 * functional.one_hot(torch.where(right, labels, (labels + 1) % classes), classes) + 0.1 * noise


def arranged(labels: Tensor, how: str) -> Tensor:
    if how == "sorted":
        return labels.sort().values
    if how == "shuffled":
        return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(5))]
    return labels


@pytest.mark.parametrize("how", ["sorted", "shuffled", "kept"])
def test_labels_of_other_samples_are_found(tmp_path: Path, how: str) -> None:
    labels = torch.randint(5, (COUNT,), generator=torch.Generator().manual_seed(1))
    loaders = {
        "train": DataLoader(TensorDataset(sure_answers(labels), labels), 20),
        "test": DataLoader(TensorDataset(sure_answers(labels.flip(0)), arranged(labels.flip(0), how)), 20),
    }
    report = judge(tmp_path, loaders, Identity())
    found = report.outcome("alignment")
    assert found.status == ("pass" if how == "kept" else "fail")
    if how != "kept":
        assert found.message.startswith(
            "What the model predicts has nothing to do with the labels in test (Cramér's V 0."
        )
        assert {one.check for one in report.outcomes if one.status == "fail" and one.severity == "error"} == {
            "alignment"
        }


@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_a_model_that_guesses_is_not_taken_for_wrong_labels_unless_it_is_sure(tmp_path: Path, scale: float) -> None:
    labels = torch.randint(5, (COUNT,), generator=torch.Generator().manual_seed(1))
    guesses = scale * torch.randn(COUNT, 5, generator=torch.Generator().manual_seed(3))
    loader = DataLoader(TensorDataset(guesses, labels), 20)
    found = judge(tmp_path, {"test": loader}, Identity()).outcome("alignment")
    assert found.status == ("fail" if scale > 1 else "pass")


class Line(nn.Module):
    """Answers with the sum of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda y: y.roll(1), "Targets are shifted by one row: the predictions fit those of the sample after"),
        (lambda y: -y, "Targets have the other sign: the predictions fit them when it is changed"),
        (lambda y: y, None),
        (lambda y: torch.randn(len(y), generator=torch.Generator().manual_seed(4)), None),
    ],
)
def test_measured_targets_that_do_not_fit_are_found(tmp_path: Path, change: Any, says: str | None) -> None:
    rows = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(0))
    targets = rows.sum(1) + 0.2 * torch.randn(COUNT, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(TensorDataset(rows, change(targets)), 20)
    found = judge(tmp_path, {"test": loader}, Line()).outcome("alignment")
    assert [found.status, found.severity] == (["pass", "error"] if says is None else ["fail", "error"])
    assert says is None or found.message.startswith(says)


def test_a_part_of_the_dataset_with_wrong_labels_is_named(tmp_path: Path) -> None:
    made = world(samples=240)
    for row in made.tables["predictions"]:
        if row["index"] >= 180:
            grade(row, (row["label"] + 1) % 3, row["logits"])
    for row in made.tables["samples"]:
        row["source_bytes"] = 1_000
        row["label"] = (row["label"] + (row["index"] >= 180)) % 3
    outcome = outcome_of(made.write(tmp_path / "lineage"), "weak_segments")
    assert outcome.message.startswith("Of 60 samples with a place in the dataset from 180 to 239, ")


def test_classes_that_follow_each_other_are_no_weak_part(tmp_path: Path) -> None:
    made = world(samples=240)
    order = sorted(range(240), key=lambda index: (index % 3, index))
    for table in ("samples", "stage_outputs", "predictions"):
        for row in made.tables[table]:
            row["index"] = order.index(row["index"])
    for row in made.tables["predictions"]:
        if row["label"] == 2 and row["index"] % 2:
            grade(row, 2, [3.0, 0.0, 0.0])
    assert not any(
        "place in the dataset" in one.message
        for one in outcome_of(made.write(tmp_path / "lineage"), "weak_segments").findings
    )


class Masks(Dataset[Any]):
    """Pictures of noise with masks of which many are equal; the mask alone goes through a function that is seen."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        mask = torch.zeros(1, 1, 16, 16)
        mask[..., index % 4 : index % 4 + 5] = 3
        picture = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(index))
        return picture, functional.interpolate(mask, (8, 8))[0, 0].long()


def test_pictures_with_equal_masks_are_not_duplicates(tmp_path: Path) -> None:
    assert judge(tmp_path, {"train": DataLoader(Masks(), 20)}).outcome("duplicates").status == "pass"


@pytest.mark.parametrize("level", [255.0, 128.0])
def test_pictures_that_a_stage_turns_white_are_reported_once(tmp_path: Path, level: float) -> None:
    """As `convert("RGB")` does with pictures of 16 bits: some become white all over, the others nearly."""
    made = world()
    for row in made.outputs(1):
        row.update(mean=254.0, min=3.0, max=255.0)
        if row["index"] < 30:
            row.update(mean=level, min=level, max=level)
    report = run_checks(made.write(tmp_path / "lineage"), only=["blank", "clipped"], record=False)
    assert report.outcome("clipped").severity == "error"
    assert report.outcome("blank").severity == ("info" if level == 255 else "error")


@pytest.mark.parametrize(("factor", "offset", "says"), [
    (1000.0, 5.0, "20 of 200 targets are about 1,000 times as large as what is predicted, and the others are not"),
    (0.1, 5.0, "20 of 200 targets are about 10 times smaller than what is predicted, and the others are not"),
    (1.0, 5.0, None),
    (1.0, 0.0, None),
])  # fmt: skip
def test_targets_in_another_unit_are_found(tmp_path: Path, factor: float, offset: float, says: str | None) -> None:
    rows = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(0)) + offset
    noise = 0.5 * torch.randn(COUNT, generator=torch.Generator().manual_seed(1))
    targets = (rows.sum(1) + noise) * torch.where(torch.arange(COUNT) % 10 == 0, factor, 1.0)
    loader = DataLoader(TensorDataset(rows, targets), 20)
    found = judge(tmp_path, {"test": loader}, Line()).outcome("alignment")
    assert [found.status, found.severity] == (["pass", "error"] if says is None else ["fail", "warning"])
    assert says is None or found.message.startswith(says)
