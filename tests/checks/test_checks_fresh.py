"""Mistakes of loaders, heads and normalisation that no planted case had, each with its clean twin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checks_contracts import outcome_of
from checks_world import LAST, digest, grade, world
from PIL import Image
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torchvision.transforms.functional import to_tensor

from audit.api import record
from audit.checks.report import Report
from audit.checks.runner import run_checks


class Shards(IterableDataset[Any]):
    """A stream that each worker reads its part of, as the documentation of torch recommends."""

    def __init__(self, *, sharded: bool = True) -> None:
        self.sharded = sharded

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker is not None and self.sharded else (0, 1)
        for number in range(first, 60, step):
            yield torch.full((3, 4), float(number)), number % 3


class Rows(Dataset[Any]):
    """Six hundred rows, of which one in ten is of class 1."""

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.arange(4.0) + index, int(index % 10 == 0)


class Pictures(Dataset[Any]):
    """Pictures in memory."""

    def __init__(self, pictures: list[Image.Image]) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Tensor:
        return to_tensor(self.pictures[index])


def judge(place: Path, loader: DataLoader[Any], split: str, *checks: str) -> Report:
    with record(place / "lineage") as run:
        for _ in run.loader(loader, split=split):
            pass
    return run_checks(place / "lineage", only=checks, record=False)


@pytest.mark.workers
@pytest.mark.parametrize("sharded", [True, False])
def test_a_stream_that_asks_for_its_worker_draws_nothing(tmp_path: Path, sharded: bool) -> None:
    loader = DataLoader(Shards(sharded=sharded), batch_size=10, num_workers=2, multiprocessing_context="fork")
    report = judge(tmp_path, loader, "test", "repeated_draws", "augmentation", "duplicates")
    assert report.outcome("repeated_draws").status != "fail"
    assert report.outcome("augmentation").status != "fail"
    assert report.outcome("duplicates").total == (0 if sharded else 60)


class SeededRows(Rows):
    """Rows with noise from a generator of each visit, seeded by torch's first seed and the index."""

    def __init__(self, *, is_reset: bool = False) -> None:
        self.is_reset = is_reset

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        row, label = super().__getitem__(index)
        if self.is_reset:
            # Two states in turn: each visit leaves torch at another one.
            torch.manual_seed(index % 2)
            return row + torch.rand(4), label
        generator = torch.Generator().manual_seed(torch.initial_seed() + index)
        return row + torch.rand(4, generator=generator), label


@pytest.mark.parametrize("is_reset", [False, True])
def test_rows_seeded_by_the_first_seed_in_the_main_process_draw_nothing_from_torch(
    tmp_path: Path, is_reset: bool
) -> None:
    """torch's state is recorded with each of them, because it has the seed."""
    loader = DataLoader(SeededRows(is_reset=is_reset), batch_size=10)
    report = judge(tmp_path, loader, "test", "repeated_draws", "augmentation")
    assert {outcome.status == "fail" for outcome in report.outcomes} == {is_reset}


@pytest.mark.parametrize("repeated", [False, True])
def test_equal_pictures_without_files_are_duplicates_alone(tmp_path: Path, repeated: bool) -> None:
    """They are not also reported as nearly equal."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 4, 4, 3), dtype=np.uint8).repeat(8, 1).repeat(8, 2)
    pictures = [Image.fromarray(one) for one in (*pixels, *pixels[: 5 * repeated])]
    with record(tmp_path / "lineage", capture="full") as run:
        for _ in run.loader(DataLoader(Pictures(pictures), batch_size=5)):
            pass
    report = run_checks(tmp_path / "lineage", only=["duplicates", "near_duplicates"], record=False)
    assert [outcome.total for outcome in report.outcomes] == ([5, 0] if repeated else [0, 0])


def test_a_stream_in_the_main_process_draws_nothing(tmp_path: Path) -> None:
    report = judge(tmp_path, DataLoader(Shards(), batch_size=10), "test", "repeated_draws", "augmentation")
    assert all(outcome.status != "fail" for outcome in report.outcomes)


@pytest.mark.parametrize("of_classes", [False, True])
def test_weights_of_classes_instead_of_samples_are_found(tmp_path: Path, of_classes: bool) -> None:
    labels = np.array([Rows()[n][1] for n in range(600)])
    weights = 1 / np.bincount(labels)
    torch.manual_seed(0)
    sampler = WeightedRandomSampler((weights if of_classes else weights[labels]).tolist(), 600)
    outcome = judge(tmp_path, DataLoader(Rows(), batch_size=50, sampler=sampler), "train", "coverage").outcome(
        "coverage"
    )
    if of_classes:
        assert [finding.severity for finding in outcome.findings] == ["warning"]
        assert "600 draws gave only 2 of the 600 samples of train" in outcome.message
    else:
        assert not outcome.findings


def test_a_sampler_that_draws_each_sample_many_times_is_not_reported(tmp_path: Path) -> None:
    rows = TensorDataset(torch.arange(60.0)[:, None], torch.arange(60) % 3)
    sampler = RandomSampler(rows, replacement=True, num_samples=1_200)
    assert (
        not judge(tmp_path, DataLoader(rows, batch_size=50, sampler=sampler), "train", "coverage").outcomes[0].findings
    )


def test_many_missing_classes_are_one_finding(tmp_path: Path) -> None:
    made = world()
    made.run.classes = [*(made.run.classes or []), *(f"class {n}" for n in range(7))]
    store = made.write(tmp_path / "lineage")
    (finding,) = outcome_of(store, "missing_classes").findings
    assert finding.message.startswith("No usable sample has 7 of the 10 classes, such as class 0, class 1,")
    left = outcome_of(store, "missing_classes", {"may_miss": ["class 0", "class 1"]}).findings
    assert len(left) == 5


@pytest.mark.parametrize("count", [5, 25])
def test_two_classes_with_the_same_content_are_one_finding(tmp_path: Path, count: int) -> None:
    made = world()
    for number in range(2 * count):
        row = made.sample(number)
        row.update(source_digest=digest("shared", number // 2, size=64), label=number % 2)
        row["label_name"] = ("bird", "cat")[number % 2]
    store = made.write(tmp_path / "lineage")
    outcome = outcome_of(store, "conflicting_labels")
    if count < 20:
        assert len(outcome.findings) == 2 * count
    else:
        assert outcome.message.startswith("25 contents are labelled bird and also cat, such as")
        assert len(outcome.findings) == 1
        allow = {"allow": [{"source": "nothing/*", "reason": "names samples"}]}
        assert len(outcome_of(store, "conflicting_labels", allow).findings) == 50


def test_content_of_many_samples_names_all_of_its_labels(tmp_path: Path) -> None:
    """More samples than are listed share content with another label."""
    values = torch.arange(4_800) % 2_400
    labels = torch.arange(4_800) // 2_400
    with record(tmp_path / "lineage") as run:
        pairs = TensorDataset(values[:, None].float() + torch.arange(16.0), 2 * (values % 7) + labels)
        for _ in run.loader(DataLoader(pairs, batch_size=400)):
            pass
    (outcome,) = run_checks(tmp_path / "lineage", only=["conflicting_labels"], record=False).outcomes
    assert outcome.findings
    assert all("labelled ." not in finding.message for finding in outcome.findings)


@pytest.mark.parametrize("classes_shifted", [True, False])
def test_one_sample_of_each_class_is_shifted_by_class_alone(tmp_path: Path, classes_shifted: bool) -> None:
    made = world()
    order = np.arange(60) if classes_shifted else np.random.default_rng(0).permutation(60)
    made.run.classes = [f"c{n}" for n in range(60)]
    for number, row in enumerate(made.tables["predictions"]):
        made.sample(row["index"])["label"] = int(order[row["index"]])
        said = (order[row["index"]] + 1) % 60 if classes_shifted else order[(number + 1) % 60]
        grade(row, int(order[row["index"]]), [9.0 * (n == said) for n in range(60)])
    store = made.write(tmp_path / "lineage")
    shifted = {check: outcome_of(store, check).total for check in ("class_order", "alignment")}
    assert (shifted["class_order"] == 1) == classes_shifted
    assert (shifted["alignment"] == 1) != classes_shifted


@pytest.mark.parametrize("over_batch", [False, True])
def test_a_softmax_over_the_batch_is_found(tmp_path: Path, over_batch: bool) -> None:
    made = world()
    outputs = np.array([row["logits"] for row in made.tables["predictions"]])
    steps = np.array([row["step"] for row in made.tables["predictions"]])
    for step in np.unique(steps):
        powers = np.exp(outputs[steps == step])
        outputs[steps == step] = powers / powers.sum(axis=0) if over_batch else 1 / (1 + 1 / powers)
    for row, values in zip(made.tables["predictions"], outputs.tolist(), strict=True):
        grade(row, row["label"], values)
    found = outcome_of(made.write(tmp_path / "lineage"), "probabilities").findings
    assert any("over the samples of a batch" in finding.message for finding in found) == over_batch


@pytest.mark.parametrize("exchanged", [False, True])
def test_an_exchanged_mean_and_std_are_found(tmp_path: Path, exchanged: bool) -> None:
    made = world()
    mean, std = (0.31, 0.13) if exchanged else (0.13, 0.31)
    made.stage(LAST)["parameters"] = f'{{"mean": [{mean}], "std": [{std}]}}'
    for row in made.outputs(LAST - 1):
        row.update(min=0.0, max=1.0, mean=0.132, std=0.3)
    found = outcome_of(made.write(tmp_path / "lineage"), "scale").findings
    assert [finding.severity for finding in found] == ["warning"] * exchanged
    assert all("seem to be exchanged" in finding.message for finding in found)


@pytest.mark.parametrize("scaled", [True, False])
def test_targets_that_one_split_does_not_scale_are_found(tmp_path: Path, scaled: bool) -> None:
    rng = np.random.default_rng(1)
    rows = torch.from_numpy(rng.normal(size=(300, 6)).astype(np.float32))
    targets = rows @ torch.arange(1.0, 7.0)[:, None] + 0.1
    model = torch.nn.Linear(6, 1).eval()
    with record(tmp_path / "lineage") as run:
        network = run.model(model)
        for split, part in (("train", slice(0, 200)), ("test", slice(200, 300))):
            given = targets[part] if scaled or split == "train" else 40 * targets[part] + 200
            for inputs, _ in run.loader(DataLoader(TensorDataset(rows[part], given), batch_size=50), split=split):
                network(inputs)
    (outcome,) = run_checks(tmp_path / "lineage", only=["split_drift"], record=False).outcomes
    assert outcome.total == (not scaled)
    assert scaled or "The target of samples differs between the splits train and test" in outcome.message


def test_outputs_without_a_class_are_named_by_their_numbers(tmp_path: Path) -> None:
    """The classes 5 to 7 have the labels 0 to 2, and the model's outputs their own numbers."""
    made = world()
    made.run.classes = ["5", "6", "7"]
    for row in made.tables["predictions"]:
        grade(row, row["label"], [8.0 * (number == row["label"] + 5) for number in range(8)])
    store = made.write(tmp_path / "lineage")
    (found,) = outcome_of(store, "class_order").findings
    assert "output 5 means 5, output 6 means 6, output 7 means 7" in found.message
    (head,) = outcome_of(store, "head").findings
    assert head.severity is None


@pytest.mark.parametrize("sigma", [1.2, (0.4, 1.2)])
def test_a_blur_of_one_strength_draws_nothing(tmp_path: Path, sigma: Any) -> None:
    """Its class is random, and its settings leave it one value."""
    made = world()
    made.stage(1).update(
        random=True, name="GaussianBlur", parameters=json.dumps({"sigma": np.resize(sigma, 2).tolist()})
    )
    for row in made.outputs(1):
        row["params"] = json.dumps({"sigma": [1.2000000476837158] * 2})
    outcome = outcome_of(made.write(tmp_path / "lineage"), "augmentation")
    assert (outcome.status == "pass") == (sigma == 1.2), outcome.message
