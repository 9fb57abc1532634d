"""The source of a sample is the file that it was read from, whatever order a dataset of the user's own takes its items in."""

from __future__ import annotations

import hashlib
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import to_tensor

import audit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six pictures in two folders, each of one colour: its number in the folders' order."""
    for number in range(6):
        path = tmp_path / "pictures" / f"class{number // 3}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, number, number)).save(path)
        np.save(tmp_path / f"{number:03}.npy", np.full(4, number, np.float32))
    np.save(tmp_path / "all.npy", np.arange(24, dtype=np.float32).reshape(6, 4))
    return tmp_path


def folder(root: Path) -> Any:
    return ImageFolder(root / "pictures", transforms.ToTensor())


class Reversed(Dataset):  # type: ignore[type-arg]
    """As long as what it wraps, in another order."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[len(self) - 1 - index]


class ReversedBatches(Reversed):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class ReversedSubset(Subset):  # type: ignore[type-arg]
    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.indices[-1 - index]]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class ReversedList(Dataset):  # type: ignore[type-arg]
    """Has a list `samples`, as torchvision's folders, and takes it from its end."""

    def __init__(self, root: Path) -> None:
        self.samples = list(folder(root).samples)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[-1 - index]
        return to_tensor(Image.open(path)), label


class NextInstead(ReversedList):
    """Gives the item before, where one is damaged."""

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        image = Image.open(path)
        try:
            if index % 2 == 0:
                raise OSError("damaged")
        except OSError:
            return self[index + 1]
        return to_tensor(image), label


class NextOfWrapped(Reversed):
    def __getitem__(self, index: int) -> Any:
        try:
            image, label = self.dataset[index]
            if index % 2 == 0:
                raise OSError("damaged")
        except OSError:
            return self.dataset[index + 1]
        return image, label


def facts_of(store: Path, dataset: Any, workers: int = 0, **options: Any) -> list[tuple[Any, ...]]:
    """Return index, source, label, and the digest and value of the first pixel that were loaded, of each sample."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(store, strict=True, capture="full") as run:
            list(run.loader(DataLoader(dataset, batch_size=3, num_workers=workers), **options))
    with audit.open(store) as lineage:
        rows = lineage.sql(
            "SELECT index, source, root, source_digest, label, any_value(min) FROM samples JOIN stage_outputs USING (index, epoch, visit) "
            "WHERE stage = 0 GROUP BY ALL ORDER BY index"
        ).fetchall()
        assert lineage.replay(dataset=dataset).identical == len(rows)
    for _, source, root, digest, _, _ in rows:
        if root is not None:
            assert hashlib.sha256(Path(root, source).read_bytes()).hexdigest() == digest
    return [(index, source, label, least) for index, source, _, _, label, least in rows]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Reversed, ReversedBatches, ReversedSubset])
def test_a_wrapper_that_takes_items_in_another_order(root: Path, kind: Any, workers: int) -> None:
    base = folder(root)
    dataset = kind(base, list(range(6))) if kind is ReversedSubset else kind(base)
    found = facts_of(root / "lineage", dataset, workers)
    assert found == [(n, f"class{(5 - n) // 3}/{5 - n}.png", (5 - n) // 3, 5 - n) for n in range(6)]


def test_a_list_in_another_order(root: Path) -> None:
    found = facts_of(root / "lineage", ReversedList(root))
    assert found == [(n, f"class{(5 - n) // 3}/{5 - n}.png", (5 - n) // 3, 5 - n) for n in range(6)]


def test_another_item_instead_of_a_damaged_one(root: Path) -> None:
    expected = [(n, n | 1, (n | 1) // 3, n | 1) for n in range(6)]
    found = facts_of(root / "lineage", NextInstead(root))
    assert found == [(n, f"{file}.png", label, least) for n, file, label, least in expected]
    found = facts_of(root / "wrapped", NextOfWrapped(folder(root)))
    # What was loaded first was thrown away.
    assert [(n, source, label) for n, source, label, _ in found] == [
        (n, f"class{label}/{file}.png", label) for n, file, label, _ in expected
    ]


class Memory(Dataset):  # type: ignore[type-arg]
    targets = (0, 1, 2, 3, 4, 5)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return torch.full((2,), float(index)), index


class Part(Dataset):  # type: ignore[type-arg]
    """A part of a dataset, by a class of one's own that keeps it under a name of its own."""

    def __init__(self, whole: Any, numbers: Any) -> None:
        self.whole, self.numbers = whole, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        value, label = self.whole[self.numbers[index]]
        return value + 1, label


def sources_of(store: Path, dataset: Any) -> list[str]:
    return [source for _, source, _, _ in facts_of(store, dataset)]


def test_parts_of_one_dataset_do_not_share_identities(tmp_path: Path) -> None:
    part = Part(Subset(Memory(), [5, 4, 3, 2]), np.array([1, 3]))
    assert sources_of(tmp_path / "part", part) == ["dataset://4", "dataset://2"]
    joined: Any = ConcatDataset([Part(Memory(), [5]), Part(Memory(), [4])])
    # A number in one of two datasets would be that of two samples.
    assert sources_of(tmp_path / "joined", joined) == ["dataset://0", "dataset://1"]


class Pair(Reversed):
    def __getitem__(self, index: int) -> Any:
        (one, first), (other, second) = self.dataset[index], self.dataset[len(self) - 1 - index]
        return one, other, int(first == second)


def test_a_pair_has_neither_the_label_nor_the_digest_of_one(root: Path) -> None:
    found = facts_of(root / "lineage", Pair(folder(root)))
    assert found == [(n, f"class{n // 3}/{n}.png", None, n) for n in range(6)]
    with audit.open(root / "lineage") as lineage:
        loads = lineage.sql("SELECT index, min FROM stage_outputs WHERE name = 'load' ORDER BY index, stage").fetchall()
        assert loads == [pair for n in range(6) for pair in ((n, n), (n, 5 - n))]
        files = lineage.sql("SELECT index, source FROM sample_sources ORDER BY index, ordinal").fetchall()
    assert files == [(n, f"class{m // 3}/{m}.png") for n in range(6) for m in (n, 5 - n)]
    assert sources_of(root / "memory", Pair(Memory())) == [f"dataset://{n}" for n in range(6)]


class Unlabelled(Memory):
    """Gives the values in another order than that of its targets."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((2,), float(5 - index))


def test_targets_that_are_not_in_the_items_are_no_labels(tmp_path: Path) -> None:
    assert [label for _, _, label, _ in facts_of(tmp_path / "lineage", Unlabelled())] == [None] * 6


class Arrays(Dataset):  # type: ignore[type-arg]
    """Reads arrays by a name of each sample, or one for all."""

    def __init__(self, root: Path, form: str) -> None:
        self.root, self.form = str(root), form
        names = [f"{n:03}" for n in range(6)]
        if form == "table":
            self.table = pd.DataFrame({"id": names, "y": range(6)}, index=range(100, 106))
        elif form == "several of one":
            self.rows = [(str(root / f"{name}.npy"), row) for name in names[:2] for row in range(3)]
        elif form == "some of a list":
            self.paths = [root / f"{name}.npy" for name in names]
            random.Random(3).shuffle(self.paths)

    def __len__(self) -> int:
        return 6 if self.form != "some of a list" else 3

    def __getitem__(self, index: int) -> Any:
        if self.form == "table":
            name = f"{self.table.iloc[index]['id']}.npy"
        elif self.form == "several of one":
            name = Path(self.rows[index][0]).name
        elif self.form == "some of a list":
            name = self.paths[index + 3].name
        else:
            name = f"{index:03}.npy" if self.form == "numbers" else "all.npy"
        return torch.from_numpy(np.load(f"{self.root}/{name}")), index % 2


@pytest.mark.parametrize("form", ["table", "numbers", "some of a list", "one for all", "several of one"])
def test_a_file_of_one_sample_is_its_source(root: Path, form: str) -> None:
    dataset = Arrays(root, form)
    expected = {
        "table": [f"{n:03}.npy" for n in range(6)],
        "numbers": [f"{n:03}.npy" for n in range(6)],
        "some of a list": [path.name for path in getattr(dataset, "paths", [])[3:]],
        "one for all": [f"dataset://{n}" for n in range(6)],
        "several of one": [f"dataset://{n}" for n in range(6)],
    }
    assert sources_of(root / "lineage", dataset) == expected[form]


class Caught(Reversed):
    def __getitem__(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except OSError:
            return self.dataset[index + 1]


def test_an_error_that_the_dataset_catches_is_not_a_failed_sample(root: Path) -> None:
    (root / "pictures" / "class0" / "1.png").write_bytes(b"not a picture")
    found = facts_of(root / "lineage", Caught(folder(root)))
    assert found == [(n, f"class{m // 3}/{m}.png", m // 3, m) for n, m in enumerate([0, 2, 2, 3, 4, 5])]
    with audit.open(root / "lineage") as lineage:
        assert lineage.sql("SELECT count(*) FROM samples WHERE status = 'ok' AND error IS NULL").fetchall() == [(6,)]


class Mosaic(Dataset):  # type: ignore[type-arg]
    """Reads several pictures by a list that it takes in another order."""

    def __init__(self, root: Path) -> None:
        self.paths = [path for path, _ in folder(root).samples]

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return torch.stack([to_tensor(Image.open(self.paths[n])) for n in (5 - index, index)]), 0


class OtherInstead(Mosaic):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index])
        return self[index + 1] if index % 2 == 0 else (to_tensor(image), 0)


def test_the_first_of_several_pictures_is_the_source(root: Path) -> None:
    assert sources_of(root / "lineage", Mosaic(root)) == [f"class{(5 - n) // 3}/{5 - n}.png" for n in range(6)]
    assert sources_of(root / "instead", OtherInstead(root)) == [f"class{(n | 1) // 3}/{n | 1}.png" for n in range(6)]
