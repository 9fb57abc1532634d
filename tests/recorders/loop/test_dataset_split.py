"""Which split the samples of a loader are of, if the user does not say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recording_material import Numbers, Questions
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, random_split
from torchvision.datasets import MNIST
from torchvision.transforms import ToTensor
from torchvision_datasets import idx

import audit


@pytest.fixture
def mnist(tmp_path: Path) -> Callable[[bool], MNIST]:
    """MNIST of four pictures: all labels for training are 1, all for testing 0."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, label in (("train", 1), ("t10k", 0)):
        idx(raw / f"{part}-images-idx3-ubyte", np.arange(4 * 784).reshape(4, 28, 28) % 256)
        idx(raw / f"{part}-labels-idx1-ubyte", np.full(4, label))
    return lambda train: MNIST(str(tmp_path), train=train, transform=ToTensor())


def numbers(**attributes: Any) -> Numbers:
    dataset = Numbers(6)
    vars(dataset).update(attributes)
    return dataset


WHOLE: dict[str, tuple[dict[str, Any], str | None]] = {
    "its attribute": ({"split": "valid"}, "valid"),
    "its folder": ({"root": "data/Train/"}, "Train"),
    "its attribute before its folder": ({"split": "test", "root": "data/train"}, "test"),
    "an attribute that is not the name of a split": ({"split": "north"}, None),
    "a folder that is not the name of a split": ({"root": "data/photos"}, None),
    "an attribute of another type": ({"split": 0.8}, None),
    "`train` of a class that is not torchvision's": ({"train": False}, None),
    "nothing": ({}, None),
}


def recorded_splits(store: Path, loader: Any, **options: Any) -> list[Any]:
    with audit.record(store, strict=True) as run:
        for _ in run.loader(loader, **options):
            pass
    return [split for (split,) in Questions(store)("SELECT DISTINCT split FROM samples")]


@pytest.mark.parametrize(("attributes", "split"), WHOLE.values(), ids=WHOLE)
def test_a_loader_of_a_whole_dataset(tmp_path: Path, attributes: dict[str, Any], split: str | None) -> None:
    assert recorded_splits(tmp_path / "lineage", DataLoader(numbers(**attributes), 2, shuffle=True)) == [split]


def test_what_the_user_says_comes_first(tmp_path: Path) -> None:
    assert recorded_splits(tmp_path / "lineage", DataLoader(numbers(split="train")), split="test") == ["test"]


PARTS: dict[str, Callable[[Any], DataLoader[Any]]] = {
    "a sampler of a part": lambda dataset: DataLoader(dataset, sampler=SubsetRandomSampler([0, 2])),
    "a subset": lambda dataset: DataLoader(Subset(dataset, range(6))),
    "a random split": lambda dataset: DataLoader(random_split(dataset, [4, 2])[1]),
}


@pytest.mark.parametrize("make", PARTS.values(), ids=PARTS)
def test_a_part_of_a_dataset_may_be_any_split(tmp_path: Path, make: Callable[[Any], DataLoader[Any]]) -> None:
    assert recorded_splits(tmp_path / "lineage", make(numbers(split="train", root="data/train"))) == [None]


@pytest.mark.parametrize(("is_training", "split"), [(True, "train"), (False, "test")])
def test_a_dataset_of_torchvision_says_whether_it_is_for_training(
    tmp_path: Path, mnist: Callable[[bool], MNIST], is_training: bool, split: str
) -> None:
    assert recorded_splits(tmp_path / "lineage", DataLoader(mnist(is_training))) == [split]


def test_a_training_with_unnamed_loaders_has_the_accuracy_of_the_one_that_it_is_evaluated_on(
    tmp_path: Path, mnist: Callable[[bool], MNIST]
) -> None:
    class Zero(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[3.0, 0.0]]).repeat(len(x), 1)

    with audit.record(tmp_path / "lineage", strict=True) as run:
        loaders = [run.loader(DataLoader(mnist(train), 4)) for train in (True, False)]
        model = run.model(Zero())
        for _ in run.epochs(2):
            for loader in loaders:
                for x, _ in loader:
                    model(x)
    with audit.open(tmp_path / "lineage") as store:
        found = store.run()
    assert (found.accuracy, found.accuracy_split) == (1.0, "test")
