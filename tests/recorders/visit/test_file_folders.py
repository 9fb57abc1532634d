"""Files of one name in several folders are different sources."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.functional import to_tensor

import audit

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
