"""Files of one name in several folders are different sources."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision.transforms.functional import to_tensor

import audit
from audit.records import is_about_files

CLASSES = ("a", "b", "c")


class Folders(Dataset):  # type: ignore[type-arg]
    """One picture `0.png` in each folder, named in one of several ways."""

    def __init__(self, folder: Path, form: str, order: tuple[str, ...] = CLASSES) -> None:
        self.form, self.order, paths = form, order, [folder / name / "0.png" for name in order]
        for name, path in zip(order, paths, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4), (ord(name), 0, 0)).save(path)
        if form in ("paths", "source"):
            self.files: Any = paths
        elif form == "rows":
            self.files = [{"image": str(path), "class": path.parent.name} for path in paths]
        elif form == "names":
            self.files = [f"{name}/0.png" for name in order]
        if form in ("names", "folder"):
            self.where = str(folder)
        if form == "source":
            self.source = lambda index: paths[index]

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        if self.form in ("paths", "source"):
            path = self.files[index]
        elif self.form == "rows":
            path = self.files[index]["image"]
        else:
            path = Path(self.where, self.order[index], "0.png")
        return to_tensor(Image.open(path)), CLASSES.index(self.order[index])


@pytest.mark.parametrize("form", ["paths", "rows", "names", "folder", "source"])
def test_runs_in_another_order_have_the_same_samples(tmp_path: Path, form: str) -> None:
    for name, order in (("one", CLASSES), ("other", ("c", "a", "b"))):
        with audit.record(tmp_path / "lineage", name=name, strict=True) as run:
            list(run.loader(DataLoader(Folders(tmp_path / "data", form, order))))
    with audit.open(tmp_path / "lineage") as store:
        rows = store.sql("SELECT DISTINCT source, root FROM samples ORDER BY source").fetchall()
        assert rows == [(f"{name}/0.png", str(tmp_path / "data")) for name in CLASSES]
        found = store.diff("one", "other").as_json()
    assert (found["matched"], found["source_changed"], found["label_changed"]) == (3, [], [])


class Packed(Dataset):  # type: ignore[type-arg]
    """Rows of one packed table that is read for every sample."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with gzip.open(path, "wt") as file:
            file.write("1,2\n3,4\n")

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        with gzip.open(self.path, "rt") as file:
            return np.array([float(number) for number in file.read().split()[index].split(",")]), index


def test_a_packed_table_is_not_a_picture(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage") as run:
        list(run.loader(DataLoader(Packed(tmp_path / "table.csv.gz"))))
    with audit.open(tmp_path / "lineage") as store:
        assert store.sql("SELECT source FROM samples ORDER BY index").fetchall() == [("dataset://0",), ("dataset://1",)]
        assert store.sql("SELECT DISTINCT source FROM sample_sources").fetchall() == [("table.csv.gz",)]


class Frames(Dataset):  # type: ignore[type-arg]
    """Lists one folder for each sample, with the frames of a video in it."""

    def __init__(self, root: Path) -> None:
        self.videos = [root / "videos" / f"video{number}" for number in range(3)]
        for number, folder in enumerate(self.videos):
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("L", (2, 2), number).save(folder / "00.png")

    def __len__(self) -> int:
        return len(self.videos)

    def __getitem__(self, index: int) -> Any:
        return to_tensor(Image.open(self.videos[index] / "00.png")), index % 2


class Numbered(Dataset):  # type: ignore[type-arg]
    """Lists the numbers of its files, which are in another order than its items."""

    def __init__(self, root: Path, numbers: list[int]) -> None:
        self.numbers, self.folder = numbers, root
        for number in numbers:
            np.save(root / f"graph{number}.npy", np.full((2, 2), number, np.float32))

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.load(self.folder / f"graph{self.numbers[index]}.npy")), index % 2


class Shards(IterableDataset):  # type: ignore[type-arg]
    """Reads several items from each file."""

    def __init__(self, root: Path) -> None:
        self.files = [root / f"shard{number}.npy" for number in range(2)]
        for number, file in enumerate(self.files):
            np.save(file, np.arange(6.0).reshape(3, 2) + number)

    def __iter__(self) -> Any:
        for file in self.files:
            yield from ((torch.from_numpy(row), 0) for row in np.load(file))


@pytest.mark.filterwarnings("ignore:audit")
@pytest.mark.parametrize(
    ("make", "sources"),
    [
        (Frames, ["video0/00.png", "video1/00.png", "video2/00.png"]),
        (lambda root: Numbered(root, [5, 2, 7]), ["graph5.npy", "graph2.npy", "graph7.npy"]),
        # Two samples of one file: it identifies neither.
        (lambda root: Numbered(root, [5, 2, 5]), ["dataset://0", "graph2.npy", "dataset://2"]),
    ],
)
def test_folders_and_numbers_in_a_list(make: Any, sources: list[str], tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        list(run.loader(DataLoader(make(tmp_path), batch_size=2)))
    with audit.open(tmp_path / "lineage") as lineage:
        found = lineage.sql("SELECT source FROM samples ORDER BY index").fetchall()
        assert [source for (source,) in found] == sources
        assert lineage.sql("SELECT count(DISTINCT index) FROM sample_sources").fetchall() == [(3,)]


@pytest.mark.filterwarnings("ignore:audit")
def test_files_of_a_stream_that_are_of_several_items_are_told(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        list(run.loader(DataLoader(Shards(tmp_path), batch_size=2)))
    (said,) = (text for text in run.run.unrecorded or () if is_about_files(text))
    assert f"such as {tmp_path / 'shard0.npy'}: the samples that were read from it are not known" in said
    with audit.open(tmp_path / "lineage") as lineage:
        assert lineage.sql("SELECT count(*) FROM sample_sources").fetchall() == [(0,)]
    with audit.record(tmp_path / "named", strict=True) as run:
        list(run.loader(DataLoader(Shards(tmp_path), batch_size=2), source=lambda n: tmp_path / f"shard{n // 3}.npy"))
    assert not [text for text in run.run.unrecorded or () if is_about_files(text)]
