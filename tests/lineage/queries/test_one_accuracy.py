"""A run's accuracy is that of its last complete epoch, wherever it is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import DataLoader, TensorDataset

import audit
from audit.cli.main import cli
from audit.lineage.queries import overview

#: The share of right predictions in each epoch of a training.
RIGHT = [0.25, 0.5, 0.875]
SAMPLES = 16


class Improving(torch.nn.Module):
    """Right for the first samples of each epoch, ever more of them."""

    epoch = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        index, label = x[:, 0].long(), x[:, 1].long()
        right = index < SAMPLES * RIGHT[self.epoch]
        said = torch.where(right, label, 1 - label)
        return torch.nn.functional.one_hot(said, 2).float() * 4


def train(store: Path, name: str, epochs: Iterator[int] | range, stop_in: int | None = None) -> None:
    labels = torch.arange(SAMPLES) % 2
    data = TensorDataset(torch.stack([torch.arange(SAMPLES), labels], 1).float(), labels)
    with audit.record(store, name=name, capture="digest") as run:
        loader = run.loader(DataLoader(data, batch_size=4))
        model = Improving()
        run.model(model)
        for epoch in epochs:
            run.epoch(epoch)
            model.epoch = epoch
            for step, (x, _) in enumerate(loader):
                if epoch == stop_in and step == 2:
                    raise KeyboardInterrupt
                model(x)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("accuracy") / "lineage"
    train(place, "whole", range(3))
    with pytest.raises(KeyboardInterrupt):
        train(place, "stopped", range(3), stop_in=2)
    with pytest.raises(KeyboardInterrupt):
        train(place, "young", range(1), stop_in=0)
    return place


class Fitted(torch.nn.Module):
    """Right for all samples of the training data, and for the first three of eight others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        label = x[:, 1].long()
        right = (x[:, 2] == 0) | (x[:, 0] < 3)
        return torch.nn.functional.one_hot(torch.where(right, label, 1 - label), 2).float() * 4


def train_with_splits(store: Path, name: str, splits: dict[str, int], epochs: int = 2) -> None:
    """Record loaders of so many samples each, all of which begin with the index 0."""
    with audit.record(store, name=name, capture="digest") as run:
        loaders = []
        for split, samples in splits.items():
            index = torch.arange(samples)
            known = torch.full((samples,), float(split != "train"))
            data = TensorDataset(torch.stack([index, index % 2, known], 1).float(), index % 2)
            loaders.append(run.loader(DataLoader(data, batch_size=4), split=split))
        model = run.model(Fitted())
        for _ in run.epochs(epochs):
            for loader in loaders:
                for x, _ in loader:
                    model(x)


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("splits") / "lineage"
    train_with_splits(place, "two", {"train": 12, "val": 8})
    train_with_splits(place, "three", {"train": 12, "Val": 8, "test": 4})
    train_with_splits(place, "parts", {"train": 12, "extra": 4})
    return place


@pytest.mark.parametrize(
    ("name", "split", "accuracy"), [("two", "val", 0.375), ("three", "test", 0.75), ("parts", None, 15 / 16)]
)
def test_a_training_is_judged_by_its_evaluation_split(
    splits: Path, tmp_path: Path, name: str, split: str | None, accuracy: float
) -> None:
    with audit.open(splits) as opened:
        run = opened.run(name)
        assert (run.last_epoch, run.accuracy_split, run.accuracy) == (1, split, accuracy)
        found: Any = opened.sql(f"SELECT accuracy_split, accuracy FROM runs WHERE name = '{name}'").fetchone()
        assert found == (split, accuracy)
        assert overview.counts(opened.reader, run, 1, run.accuracy_split)["accuracy"] == accuracy
        assert said_by_check(opened, name) == pytest.approx(accuracy, abs=1e-4)
        flips = opened.diff(name, name).flips
        assert (flips.run_accuracy_a, flips.accuracy_a) == (accuracy, accuracy)
        opened.report(str(tmp_path / "report.html"), name)
        assert opened.verify(name) == []
    assert f"{accuracy * 100:.2f}" in (tmp_path / "report.html").read_text()
    listed = CliRunner().invoke(cli, ["runs", "--store", str(splits)]).stdout
    assert f"{accuracy:.2%}" + (f" of {split}" if split else "") in listed


def said_by_check(store: audit.Store, name: str) -> float:
    (outcome,) = store.check(name, only=["accuracy"], record=False).outcomes
    return float(outcome.message.split("accuracy ")[1].split("%")[0]) / 100


@pytest.mark.parametrize(("name", "epoch", "accuracy"), [("whole", 2, 0.875), ("stopped", 1, 0.5)])
def test_everyone_says_the_same_accuracy(store: Path, tmp_path: Path, name: str, epoch: int, accuracy: float) -> None:
    with audit.open(store) as opened:
        run = opened.run(name)
        assert (run.last_epoch, run.accuracy) == (epoch, accuracy)
        in_sql: Any = opened.sql("SELECT last_epoch, accuracy FROM runs WHERE name = '" + name + "'").fetchone()
        assert in_sql == (epoch, accuracy)
        assert overview.last_epoch(opened.reader, run) == epoch
        assert overview.counts(opened.reader, run, epoch)["accuracy"] == accuracy
        assert said_by_check(opened, name) == pytest.approx(accuracy, abs=1e-4)
        found = opened.diff(name, name)
        assert (found.flips.run_accuracy_a, found.flips.run_accuracy_b) == (accuracy, accuracy)
        assert opened.sql(f"SELECT count(*) FROM flips('{name}', '{name}')").fetchone() == (0,)
        opened.report(str(tmp_path / "report.html"), name)
    assert f"{accuracy * 100:.2f}" in (tmp_path / "report.html").read_text()
    listed = json.loads(CliRunner().invoke(cli, ["runs", "--json", "--store", str(store)]).stdout)
    assert {row["name"]: row["accuracy"] for row in listed}[name] == accuracy


def test_an_epoch_that_is_not_whole_counts_only_alone(store: Path) -> None:
    """Two of four batches were predicted: of this epoch there is an accuracy, but no epoch is complete."""
    with audit.open(store) as opened:
        run = opened.run("young")
        assert (run.status, run.last_epoch) == ("interrupted", None)
        assert run.accuracy == 0.5


def test_a_run_of_the_command_line_has_one_epoch(tmp_path: Path) -> None:
    from places import CHECKPOINT, DIGITS, PIPELINE

    run = audit.run(DIGITS, model=CHECKPOINT, pipeline=PIPELINE, store=tmp_path / "lineage", workers=0, limit=30)
    assert run.last_epoch == 0
    assert run.accuracy == 1 - run.wrong / run.graded
