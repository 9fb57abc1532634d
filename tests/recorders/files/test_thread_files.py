"""Files that are opened in threads of the dataset's own: sources of the sample that waits for them, else audit says so."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from observing_material import difference
from torch.utils.data import DataLoader, Dataset

import audit
from audit.recorders.files import thread_files
from audit.records import is_about_files

COUNT = 4


class Threaded(Dataset):  # type: ignore[type-arg]
    """Reads an image and a mask at the same time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for place in range(COUNT):
            for name in ("image", "mask"):
                np.save(folder / f"{name}{place}.npy", np.full(3, place, np.float32))

    def __len__(self) -> int:
        return COUNT

    def read(self, name: str) -> Any:
        return np.load(self.folder / f"{name}.npy")

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with ThreadPoolExecutor(2) as pool:
            image, _ = pool.map(self.read, [f"image{index}", f"mask{index}"])
        return torch.from_numpy(image), index % 2


class Batches(Threaded):
    """Makes the items of a batch in threads."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.read(f"image{index}")), index % 2

    def __getitems__(self, indices: list[int]) -> list[Any]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(self.__getitem__, indices))


class Ahead(Threaded):
    """Reads the next item in a thread while this one is made, and always ends before that is."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pool = ThreadPoolExecutor(1)
        self.next: Future[Any] | None = None

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.next.result() if self.next is not None else self.read(f"image{index}")
        self.next = self.pool.submit(self.read, f"image{(index + 1) % COUNT}")
        while not self.next.done():
            time.sleep(0.001)
        return torch.from_numpy(image), index % 2


def recorded(store: Path, dataset: Any, workers: int = 0) -> tuple[list[list[str]], list[str]]:
    """Record a loop; return the files of each sample, and what is said of files."""
    methods = threading.Thread.start.__code__, threading.Thread.join.__code__
    plain = [dataset[index] for index in range(COUNT)]
    with audit.record(store, strict=True) as run:
        loader = run.loader(DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=list))
        made = [item for batch in loader for item in batch]
    assert difference(plain, made) is None
    assert (threading.Thread.start.__code__, threading.Thread.join.__code__) == methods
    query = "SELECT index, list(source ORDER BY source) FROM sample_sources GROUP BY ALL ORDER BY ALL"
    with audit.open(store) as lineage:
        found = dict(lineage.sql(query).fetchall())
    said = [text for text in run.run.unrecorded or () if is_about_files(text)]
    return [found.get(index, []) for index in range(COUNT)], said


@pytest.mark.filterwarnings("ignore:audit")
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.workers)])
def test_files_of_threads_that_are_joined(workers: int, tmp_path: Path) -> None:
    found, said = recorded(tmp_path / "lineage", Threaded(tmp_path), workers)
    assert found == [[f"image{index}.npy", f"mask{index}.npy"] for index in range(COUNT)]
    assert said == []


@pytest.mark.filterwarnings("ignore:audit")
def test_items_of_a_batch_that_are_made_in_threads(tmp_path: Path) -> None:
    found, said = recorded(tmp_path / "lineage", Batches(tmp_path))
    assert found == [[f"image{index}.npy"] for index in range(COUNT)]
    assert said == []


@pytest.mark.filterwarnings("ignore:audit")
def test_files_that_are_read_ahead_are_not_those_of_the_sample(tmp_path: Path) -> None:
    dataset = Ahead(tmp_path)
    # The thread of the pool is started by the first item that is recorded.
    with audit.record(tmp_path / "lineage", strict=True) as run:
        list(run.loader(DataLoader(dataset, batch_size=2)))
    dataset.pool.shutdown()
    with audit.open(tmp_path / "lineage") as lineage:
        found = lineage.sql("SELECT index, source FROM sample_sources").fetchall()
    assert found == [(0, "image0.npy")]
    (text,) = [text for text in run.run.unrecorded or () if is_about_files(text)]
    assert "threads of its own" in text
    assert not any(thread.is_alive() for thread in thread_files.FILES)


class EarlierPool(Threaded):
    """Reads in threads of a pool that began before the recording."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pool = ThreadPoolExecutor(1)
        self.pool.submit(abs, 1).result()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.pool.submit(self.read, f"image{index}").result()), index % 2


@pytest.mark.filterwarnings("ignore:audit")
def test_threads_that_began_before_the_recording(tmp_path: Path) -> None:
    dataset = EarlierPool(tmp_path)
    with audit.record(tmp_path / "lineage", strict=True) as run:
        list(run.loader(DataLoader(dataset, batch_size=2)))
    dataset.pool.shutdown()
    (said,) = (text for text in run.run.unrecorded or () if is_about_files(text))
    assert f"files that were opened in threads of its own, such as {tmp_path / 'image0.npy'}" in said
