"""Datasets that make whole batches by a method of their own: recorded as they were seen, and replayed identically."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recording_material import Questions
from torch.utils.data import DataLoader, Dataset, StackDataset, Subset, default_collate
from torchvision import transforms
from torchvision.datasets import ImageFolder

import audit
from audit.recorders.loop.recording import RecordingWarning

STAGES = ["load", "RandomCrop", "RandomHorizontalFlip", "ToTensor"]


def augment() -> Any:
    return transforms.Compose([transforms.RandomCrop(6), transforms.RandomHorizontalFlip(), transforms.ToTensor()])


class Named(Subset):  # type: ignore[type-arg]
    """A Subset with a name of its own, as people write it."""


class Cached(ImageFolder):
    """Calls itself for each sample."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Sorted(ImageFolder):
    """Reads in the order of the files, and gives back the order that was asked for."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        read = {index: self[index] for index in sorted(indices)}
        return [read[index] for index in indices]


class Noisy(ImageFolder):
    """Draws once for the whole batch, and adds it to each sample."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        noise = torch.rand(1)
        items = [self[index] for index in indices]
        return [(x + noise, y) for x, y in items]


class Blind(Dataset):  # type: ignore[type-arg]
    """Works on whole batches, so that no sample can be seen being made."""

    def __init__(self, transform: Any = None) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("never called")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        images = torch.stack([torch.full((3, 8, 8), float(index)) for index in indices])
        made = self.transform(images + torch.rand(1))
        return [
            (x * float(np.random.rand() + random.random()), index % 3) for x, index in zip(made, indices, strict=True)
        ]


TWO_LEVELS = """
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

class Wrapper(Dataset):
    def __init__(self, dataset, transform):
        self.dataset = dataset
        self.transform = transform

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        x, y = self.dataset[index]
        return self.transform(x), y

def dataset():
    inner = ImageFolder({root!r}, transforms.Compose([transforms.Resize(8), transforms.ToTensor()]), abs)
    middle = Wrapper(inner, transforms.Normalize([0.5] * 3, [0.5] * 3))
    return Wrapper(middle, transforms.Compose([transforms.RandomHorizontalFlip(), transforms.RandomErasing()]))
"""


def loop(loader: Any) -> list[Any]:
    given = [batch for _ in range(2) for batch in loader]
    return [*given, torch.get_rng_state(), random.getstate(), np.random.get_state()[2]]


def recorded(store: Path, make: Callable[[], Any], **options: Any) -> Questions:
    """Two epochs through a recorded loader, which give what an unrecorded one gives."""

    def given(wrap: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        return loop(wrap(DataLoader(make(), batch_size=4, shuffle=True, **options)))

    plain = given(lambda loader: loader)
    with audit.record(store) as run:
        seen = given(run.loader)
    torch.testing.assert_close(seen, plain, rtol=0, atol=0)
    return Questions(store)


def replayed(store: Path, dataset: Any) -> tuple[int, int]:
    with audit.open(store) as opened:
        result = opened.replay(dataset=dataset, workers=0)
        assert result.different == []
        return result.checked, result.identical


KINDS: dict[str, Callable[[str], Any]] = {
    "named subset": lambda root: Named(ImageFolder(root, augment()), range(10)),
    "subset of a subset": lambda root: Named(Subset(ImageFolder(root, augment()), range(1, 11)), range(8)),
    "own": lambda root: Cached(root, augment()),
    "sorted": lambda root: Sorted(root, augment()),
    "noisy": lambda root: Noisy(root, augment()),
    "subset of noisy": lambda root: Named(Noisy(root, augment()), range(1, 9)),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_is_seen_and_replayed(
    pictures: Callable[..., Path], tmp_path: Path, kind: str, workers: int
) -> None:
    root = str(pictures(count=12))
    store = tmp_path / "lineage"
    ask = recorded(store, lambda: KINDS[kind](root), num_workers=workers)
    # What is added to the finished items of a batch is not a stage, and the run says so.
    reported = [warning for warning in ask.warnings if "between 3 (ToTensor) and the item" in warning]
    assert ask.warnings == reported
    assert len(reported) == (1 if "noisy" in kind else 0)
    count = len(KINDS[kind](root))
    names = STAGES + (["item"] if "noisy" in kind else [])
    assert ask("SELECT name, count(*) FROM stage_outputs GROUP BY 1 ORDER BY min(stage)") == [
        (name, 2 * count) for name in names
    ]
    # A flip that says that it did not happen changed nothing; a crop to a smaller size always does.
    assert ask("SELECT count(*) FROM stage_outputs WHERE NOT changed AND name IN ('RandomCrop', 'ToTensor')") == [(0,)]
    assert ask("SELECT count(*) FROM samples WHERE source LIKE 'dataset://%'") == [(0,)]
    assert replayed(store, KINDS[kind](root)) == (2 * count, 2 * count)


def test_a_stack_of_datasets(pictures: Callable[..., Path], tmp_path: Path) -> None:
    root, store = str(pictures(count=8)), tmp_path / "lineage"

    def make() -> Any:
        return StackDataset(image=ImageFolder(root, augment()), mask=ImageFolder(root, augment()))

    ask = recorded(store, make)
    assert replayed(store, make()) == (16, 16)
    assert ask("SELECT count(*) FROM samples WHERE status = 'ok'") == [(16,)]
    assert ask("SELECT count(*) FROM stage_outputs WHERE params LIKE '%fired\": false%' AND changed") == [(0,)]


def test_what_is_done_to_whole_batches_is_not_reported_as_if_it_were_known(tmp_path: Path) -> None:
    store = tmp_path / "lineage"
    with pytest.warns(RecordingWarning, match="makes whole batches"):
        ask = recorded(store, lambda: Blind(augment_tensor()))
    assert ask("SELECT DISTINCT name FROM stage_outputs") == [("load",)]
    assert len(ask.warnings) == 1
    assert replayed(store, Blind(augment_tensor())) == (24, 24)


def augment_tensor() -> Any:
    return transforms.Compose([transforms.RandomCrop(6), transforms.RandomHorizontalFlip()])


def test_one_sample_of_a_batch_fails(pictures: Callable[..., Path], tmp_path: Path) -> None:
    root = pictures(count=8)
    broken = sorted(root.rglob("*.png"))[5]
    broken.write_bytes(b"no picture")
    store = tmp_path / "lineage"
    with audit.record(store) as run, pytest.raises(Exception, match="cannot identify"):
        for _ in run.loader(DataLoader(Cached(str(root), augment()), batch_size=4)):
            pass
    ask = Questions(store)
    assert ask("SELECT index, status, failed_stage FROM samples ORDER BY index") == [
        *((index, "ok", None) for index in range(5)),
        (5, "failed", "load"),
    ]


def test_the_same_sample_twice_in_a_batch(pictures: Callable[..., Path], tmp_path: Path) -> None:
    root, store = str(pictures(count=4)), tmp_path / "lineage"
    with audit.record(store) as run:
        list(run.loader(DataLoader(Cached(root, augment()), batch_sampler=[[0, 0, 1], [2, 1, 1]])))
    ask = Questions(store)
    assert ask("SELECT index, count(*) FROM samples GROUP BY 1 ORDER BY 1") == [(0, 2), (1, 3), (2, 1)]
    assert ask("SELECT count(*) FROM stage_outputs") == [(6 * len(STAGES),)]
    assert replayed(store, Cached(root, augment())) == (6, 6)


@pytest.mark.parametrize("level", ["digest", "full"])
def test_two_levels_of_transforms(pictures: Callable[..., Path], tmp_path: Path, level: str) -> None:
    file = tmp_path / f"two_levels_{level}.py"
    file.write_text(TWO_LEVELS.format(root=str(pictures(count=6))))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    store = tmp_path / "lineage"
    with audit.record(store, capture=level) as run:
        list(run.loader(DataLoader(module.dataset(), batch_size=2), builder=f"{file}:dataset"))
    ask = Questions(store)
    paths = ask("SELECT path, name FROM stages ORDER BY stage")
    assert paths == [
        ("0", "load"), ("1", "Resize"), ("2", "ToTensor"), ("target.1", "abs"),
        ("outer.1", "Normalize"), ("outer2.1", "RandomHorizontalFlip"), ("outer2.2", "RandomErasing"),
    ]  # fmt: skip
    assert replayed(store, module.dataset()) == (6, 6)
    with audit.open(store) as opened:
        trace = opened.trace(index=3)
        plain = transforms.Normalize([0.5] * 3, [0.5] * 3)(trace.value(2))
        torch.testing.assert_close(trace.value(4), plain, rtol=0, atol=0)


def test_a_transform_that_a_dataset_leaves_out(tmp_path: Path) -> None:
    """That a stage was not seen does not mean that it did not run."""

    class Sometimes(Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.transform = transforms.RandomHorizontalFlip(p=1.0)

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            x = torch.full((1, 2, 2), float(index))
            return (self.transform(x) if index % 2 else x), index

    store = tmp_path / "lineage"
    with audit.record(store) as run:
        list(run.loader(DataLoader(Sometimes(), batch_size=2)))
    ask = Questions(store)
    assert ask("SELECT index FROM stage_outputs WHERE name = 'RandomHorizontalFlip' ORDER BY 1") == [(1,), (3,)]
    assert replayed(store, Sometimes()) == (4, 4)


def test_what_a_container_passed_over_was_seen(tmp_path: Path) -> None:
    class Once(Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.transform = transforms.RandomApply([transforms.RandomHorizontalFlip(p=1.0)], p=0.0)

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return self.transform(torch.full((1, 2, 2), float(index))), index

    store = tmp_path / "lineage"
    with audit.record(store) as run:
        list(run.loader(DataLoader(Once(), batch_size=2, collate_fn=default_collate)))
    found = Questions(store)("SELECT name, params FROM stage_outputs WHERE stage > 0 ORDER BY index, stage")
    assert [(name, json.loads(params)["fired"]) for name, params in found] == [
        ("RandomHorizontalFlip", False),
        ("RandomApply", False),
    ] * 2
