"""A file that a dataset opens once and keeps open is a source of each sample that reads from it, or audit says that it is not known."""

from __future__ import annotations

import contextlib
import functools
import io
import mmap
import os
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from observing_material import difference
from torch.utils.data import DataLoader, Dataset

import audit
from audit.recorders.visit.kept_files import KeptFiles
from audit.records import is_about_files

COUNT = 4
ROWS = np.arange(COUNT * 3, dtype=np.float32).reshape(COUNT, 3)


class Kept(Dataset):  # type: ignore[type-arg]
    """Opens its file at the first item, as it must in workers. The last item is not read from the file."""

    def __init__(self, path: Path, opens: Callable[[Any], Any], read: Callable[[Any, int], Any]) -> None:
        self.path = str(path)
        self.opens = opens
        self.read = read
        self.file: Any = None

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.file is None:
            self.file = self.opens(self.path)
        row = self.read(self.file, index) if index < COUNT - 1 else ROWS[index]
        return torch.tensor(np.array(row)), index % 2


def from_bytes(data: bytes) -> Any:
    return np.frombuffer(data, dtype=np.float32)


def write_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for place, row in enumerate(ROWS):
            archive.writestr(str(place), row.tobytes())


def write_tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for place, row in enumerate(ROWS):
            member = tarfile.TarInfo(str(place))
            member.size = row.nbytes
            archive.addfile(member, io.BytesIO(row.tobytes()))


def read_member(archive: tarfile.TarFile, index: int) -> Any:
    file = archive.extractfile(str(index))
    assert file is not None
    return from_bytes(file.read())


def read_bytes(file: Any, index: int) -> Any:
    file.seek(index * 12)
    return from_bytes(file.read(12))


def read_line(file: Any, index: int) -> Any:
    file.seek(index * 6)
    return np.array([float(word) for word in file.readline().split()])


CASES: dict[str, tuple[Callable[[Path], Any], Callable[[Any], Any], Callable[[Any, int], Any]]] = {
    "zip": (write_zip, zipfile.ZipFile, lambda archive, index: from_bytes(archive.read(str(index)))),
    "tar": (write_tar, tarfile.open, read_member),
    "npy": (
        lambda path: np.save(path, ROWS),
        lambda path: np.load(path, mmap_mode="r"),
        lambda rows, index: rows[index],
    ),
    "bin": (lambda path: path.write_bytes(ROWS.tobytes()), functools.partial(open, mode="rb"), read_bytes),
    "txt": (lambda path: path.write_text("1 2 3\n" * COUNT), open, read_line),
}


def recorded(store: Path, dataset: Any, **options: Any) -> tuple[list[int], list[str]]:
    """Record a loop; return the samples that have a source, and what is said of files."""
    plain = list(DataLoader(dataset, batch_size=2))
    with audit.record(store, strict=True) as run:
        made = list(run.loader(DataLoader(dataset, batch_size=2), **options))
    assert difference(plain, made) is None
    with audit.open(store) as lineage:
        found = lineage.sql("SELECT DISTINCT index FROM sample_sources ORDER BY ALL").fetchall()
    return [index for (index,) in found], [text for text in run.run.unrecorded or () if is_about_files(text)]


@pytest.mark.filterwarnings("ignore:audit")
@pytest.mark.parametrize("kind", CASES)
def test_each_sample_that_reads_has_the_file(kind: str, tmp_path: Path) -> None:
    write, opens, read = CASES[kind]
    path = tmp_path / f"rows.{kind}"
    write(path)
    dataset = Kept(path, opens, read)
    found, said = recorded(tmp_path / "lineage", dataset)
    # The plain loop has opened it: no visit of the recorded one does.
    assert found == [0, 1, 2]
    assert len(said) == (kind in ("bin", "txt"))  # of the last sample nothing shows that it was not read from the file
    methods = zipfile.ZipFile.open, tarfile.TarFile.extractfile, np.memmap.__getitem__
    assert not any("audit" in str(constant) for method in methods for constant in method.__code__.co_consts)  # type: ignore[attr-defined]
    dataset.file = None


@pytest.mark.filterwarnings("ignore:audit")
def test_what_is_not_observed_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.bin"
    path.write_bytes(ROWS.tobytes())

    def opens(name: str) -> mmap.mmap:
        with open(name, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    dataset = Kept(path, opens, lambda file, index: from_bytes(file[index * 12 : index * 12 + 12]))
    found, said = recorded(tmp_path / "lineage", dataset)
    assert found == []
    assert said == ["Kept: file (mmap) stays open: the samples that were read from it are not known"]
    with audit.open(tmp_path / "lineage") as lineage:
        checked = lineage.check(only=["stage_coverage"])
    assert all("stays open" not in finding.message for outcome in checked.outcomes for finding in outcome.findings)
    found, said = recorded(tmp_path / "named", dataset, source=lambda _: str(path))
    assert (found, said) == ([0, 1, 2, 3], [])


HANDLES: dict[str, Any] = {}


def open_globally(name: str) -> str:
    """Keep the file in a variable of the module."""
    HANDLES[name] = open(name, "rb")  # noqa: SIM115
    return name


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system does not tell which files are open")
@pytest.mark.filterwarnings("ignore:audit")
@pytest.mark.parametrize("kind", ["number", "global"])
def test_a_file_that_stays_open_whatever_holds_it(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.bin"
    path.write_bytes(ROWS.tobytes())

    def opens(name: str) -> Any:
        return os.open(name, os.O_RDONLY) if kind == "number" else open_globally(name)

    def read(held: Any, index: int) -> Any:
        return from_bytes(os.pread(held if kind == "number" else HANDLES[held].fileno(), 12, index * 12))

    plain, dataset = (Kept(path, opens, read) for _ in range(2))
    # As in a worker: the first item that is recorded opens the file.
    expected = [plain[index] for index in range(COUNT)]
    with audit.record(tmp_path / "lineage", strict=True) as run:
        recorded_ones = run.dataset(dataset)
        assert difference(expected, [recorded_ones[index] for index in range(COUNT)]) is None
    (said,) = (text for text in run.run.unrecorded or () if is_about_files(text))
    assert said == f"Kept: the file {path} stays open: the samples that were read from it are not known"
    for held in [plain.file, dataset.file] if kind == "number" else []:
        os.close(held)
    while HANDLES:
        HANDLES.popitem()[1].close()


@pytest.mark.filterwarnings("ignore:audit")
def test_a_data_base_that_the_first_item_opens(tmp_path: Path) -> None:
    """No audit event tells of that: the attribute is seen after the item."""
    path = tmp_path / "rows.db"
    with contextlib.closing(sqlite3.connect(path)) as written:
        written.execute("CREATE TABLE rows (n, x)")
        written.executemany("INSERT INTO rows VALUES (?, ?)", [(n, row.tobytes()) for n, row in enumerate(ROWS)])
        written.commit()

    def read(connection: Any, index: int) -> Any:
        return from_bytes(connection.execute("SELECT x FROM rows WHERE n = ?", [index]).fetchone()[0])

    dataset = Kept(path, sqlite3.connect, read)
    with audit.record(tmp_path / "lineage", strict=True) as run:
        recorded_ones = run.dataset(dataset)
        for index in range(COUNT):
            recorded_ones[index]
    said = [text for text in run.run.unrecorded or () if is_about_files(text)]
    assert said == ["Kept: file (Connection) stays open: the samples that were read from it are not known"]
    dataset.file.close()


def test_hdf5(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"] = ROWS
    dataset = Kept(tmp_path / "rows.h5", h5py.File, lambda file, index: file["x"][index])
    method = h5py.Dataset.__getitem__
    found, said = recorded(tmp_path / "lineage", dataset)
    assert (found, said) == ([0, 1, 2], [])
    assert h5py.Dataset.__getitem__ is method
    dataset.file.close()


@given(st.integers(0, 3000))
def test_items_that_are_counted_at_once_pass_none_after_which_the_dataset_is_looked_at(made: int) -> None:
    one_by_one, at_once = (KeptFiles(None, are_files_named=True) for _ in range(2))
    for _ in range(made):
        one_by_one.is_due()
    at_once.count_items(made)
    following = at_once.items_until_due
    assert [one_by_one.is_due() for _ in range(following + 1)] == [False] * following + [True]
    at_once.count_items(following)
    assert at_once.is_due()
