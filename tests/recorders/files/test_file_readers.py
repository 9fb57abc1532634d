"""Readers that open files outside of Python: classes in C, folders, and packages that an item imports first."""

from __future__ import annotations

import builtins
import sqlite3
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import safetensors
from safetensors.numpy import save_file
from torch.utils.data import DataLoader, Dataset

import audit
from audit.recorders.files import file_readers

COUNT = 3
Rows = list[tuple[int, str]]


def write_video(folder: Path, index: int) -> None:
    writer = cv2.VideoWriter(str(folder / f"{index}.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 5, (16, 16))  # type: ignore[attr-defined]
    writer.write(np.full((16, 16, 3), 40 * index, dtype=np.uint8))
    writer.release()


def read_video(folder: Path, index: int) -> Any:
    capture = cv2.VideoCapture(str(folder / f"{index}.avi"))
    assert isinstance(capture, cv2.VideoCapture)
    _, frame = capture.read()
    capture.release()
    return frame


def write_tensors(folder: Path, index: int) -> None:
    save_file({"x": np.full(3, float(index))}, folder / f"{index}.safetensors")


def read_tensors(folder: Path, index: int) -> Any:
    with safetensors.safe_open(folder / f"{index}.safetensors", "np") as file:
        return file.get_tensor("x")


def write_rows(folder: Path, index: int) -> None:
    with sqlite3.connect(folder / f"{index}.db") as base:
        base.execute("CREATE TABLE numbers (x REAL)")
        base.execute("INSERT INTO numbers VALUES (?)", (float(index),))
    base.close()


def read_rows(folder: Path, index: int) -> Any:
    base = sqlite3.connect(f"file:{folder / str(index)}.db?mode=ro", uri=True)
    found = base.execute("SELECT x FROM numbers").fetchall()
    base.close()
    return np.array(found)


def read_none(folder: Path, index: int) -> Any:
    base = sqlite3.connect(":memory:")
    base.close()
    return np.array([float(index)])


class Files(Dataset):  # type: ignore[type-arg]
    def __init__(
        self, folder: Path, write: Callable[[Path, int], None] | None, read: Callable[[Path, int], Any]
    ) -> None:
        self.folder, self.read = folder, read
        folder.mkdir(parents=True, exist_ok=True)
        for index in range(COUNT):
            if write is not None:
                write(folder, index)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.read(self.folder, index)


def record(store: Path, dataset: Any) -> tuple[Rows, list[str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(store, strict=True) as run:
            list(run.loader(DataLoader(dataset, batch_size=2)))
    with audit.open(store) as lineage:
        rows = lineage.sql("SELECT index, parse_filename(source) FROM sample_sources ORDER BY ALL").fetchall()
    return rows, run.run.unrecorded or []


@pytest.mark.parametrize(
    ("write", "read", "ending"),
    [(write_video, read_video, "avi"), (write_tensors, read_tensors, "safetensors"), (write_rows, read_rows, "db")],
)
def test_each_sample_has_its_file(write: Any, read: Any, ending: str, tmp_path: Path) -> None:
    before = cv2.VideoCapture, safetensors.safe_open, sqlite3.connect, builtins.__import__
    rows, unrecorded = record(tmp_path / "lineage", Files(tmp_path / "data", write, read))
    assert rows == [(index, f"{index}.{ending}") for index in range(COUNT)]
    assert not any("not known" in text for text in unrecorded)
    assert before == (cv2.VideoCapture, safetensors.safe_open, sqlite3.connect, builtins.__import__)


def test_a_data_base_in_memory_is_not_a_file(tmp_path: Path) -> None:
    assert record(tmp_path / "lineage", Files(tmp_path / "data", None, read_none))[0] == []


def write_parts(folder: Path, index: int) -> None:
    pq.write_table(pa.table({"x": [float(index)]}), folder / f"{index}.parquet")


def read_all(folder: Path, index: int) -> Any:
    return pq.read_table(folder)["x"].to_numpy()[index : index + 1]


def read_filtered(folder: Path, index: int) -> Any:
    return pq.read_table(folder, filters=[("x", "==", float(index))])["x"].to_numpy()


def read_dataset(folder: Path, index: int) -> Any:
    return pyarrow.dataset.dataset(folder).to_table()["x"].to_numpy()[index : index + 1]


def test_a_folder_of_tables_that_is_read_whole(tmp_path: Path) -> None:
    rows, unrecorded = record(tmp_path / "lineage", Files(tmp_path / "data", write_parts, read_all))
    assert rows == [(index, f"{part}.parquet") for index in range(COUNT) for part in range(COUNT)]
    assert not any("not known" in text for text in unrecorded)


@pytest.mark.parametrize("read", [read_filtered, read_dataset])
def test_a_folder_of_tables_of_which_some_may_be_read(read: Any, tmp_path: Path) -> None:
    rows, unrecorded = record(tmp_path / "lineage", Files(tmp_path / "data", write_parts, read))
    assert rows == []
    assert any(f"{tmp_path / 'data'}" in text and "are not known" in text for text in unrecorded), unrecorded


def test_folders_that_a_replay_reads_are_not_those_of_the_next_recording(tmp_path: Path) -> None:
    dataset = Files(tmp_path / "data", write_parts, read_dataset)
    record(tmp_path / "lineage", dataset)
    with audit.open(tmp_path / "lineage") as store:
        assert store.replay(dataset=dataset).identical == COUNT
    _, unrecorded = record(tmp_path / "other", Files(tmp_path / "tensors", write_tensors, read_tensors))
    assert not any(str(tmp_path / "data") in text for text in unrecorded)


class KeptTable(Files):
    """Opens a folder of tables with the first item, and scans it for each."""

    table: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.table is None:
            self.table = pyarrow.dataset.dataset(self.folder)
        return self.table.to_table()["x"].to_numpy()[index : index + 1]


def test_a_folder_of_tables_that_is_kept(tmp_path: Path) -> None:
    _, unrecorded = record(tmp_path / "lineage", KeptTable(tmp_path / "data", write_parts, read_all))
    assert any("table (FileSystemDataset) stays open" in text for text in unrecorded), unrecorded


_LATE = """
import sys, warnings
from pathlib import Path
import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset
import audit

class Late(Dataset):
    def __init__(self, folder):
        self.folder = folder
    def __len__(self):
        return 3
    def __getitem__(self, index):
        from cv2 import imread
        return imread(str(self.folder / f"{index}.png"))

warnings.simplefilter("ignore")
folder = Path(sys.argv[1])
for index in range(3):
    Image.fromarray(np.full((4, 4, 3), index, dtype=np.uint8)).save(folder / f"{index}.png")
assert "cv2" not in sys.modules
with audit.record(folder / "lineage", strict=True) as run:
    list(run.loader(DataLoader(Late(folder), batch_size=2)))
with audit.open(folder / "lineage") as store:
    print(store.sql("SELECT source FROM samples ORDER BY index").fetchall())
"""


def test_a_package_that_the_first_item_imports(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(_LATE)
    done = subprocess.run([sys.executable, tmp_path / "late.py", tmp_path], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[('0.png',), ('1.png',), ('2.png',)]", done.stderr


class Importing(Dataset[Any]):
    """Imports at each item, the first time a module that nothing has imported."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        import this_module_is_new  # type: ignore[import-not-found]

        return np.full(3, float(index)) * this_module_is_new.FACTOR


@pytest.fixture
def new_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    lines = "\n".join(f"x{n} = max(float({n}), 1.0)" for n in range(200))
    (tmp_path / "this_module_is_new.py").write_text(f"FACTOR = 2.0\n{lines}\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("this_module_is_new", None)


def record_under_profile(store: Path, profile: Callable[[FrameType, str, Any], None]) -> None:
    """Record all items of `Importing` as one batch while another tool's profile function is active."""
    with audit.record(store, strict=True) as run:
        batches = run.loader(DataLoader(Importing(), batch_size=12))
        sys.setprofile(profile)
        try:
            list(batches)
        finally:
            sys.setprofile(None)


def test_readers_are_not_looked_for_at_each_import_statement(tmp_path: Path, new_module: None) -> None:
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        calls[frame.f_code.co_name] += event == "call"

    record_under_profile(tmp_path / "lineage", note)
    assert calls["_import"] >= 12
    one_search = len(file_readers._READERS) + len(file_readers._METHODS)
    assert calls["_loaded_module"] <= 4 * one_search


def test_what_a_module_does_while_it_is_imported_is_not_listed(tmp_path: Path, new_module: None) -> None:
    profiles: list[Any] = []
    (tmp_path / "this_module_is_new.py").write_text("import sys\nACTIVE = sys.getprofile()\nFACTOR = 2.0\n")
    with audit.record(tmp_path / "lineage", strict=True) as run:
        list(run.loader(DataLoader(Importing(), batch_size=6)))
    profiles.append(sys.modules["this_module_is_new"].ACTIVE)
    assert profiles == [None]
    # The item's own code is listed all the same.
    (unseen,) = run.run.unrecorded or [""]
    assert "Importing.__getitem__" in unseen


def test_the_profiler_of_another_tool_sees_imports(tmp_path: Path, new_module: None) -> None:
    names = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        names.add(frame.f_code.co_filename)

    record_under_profile(tmp_path / "lineage", note)
    assert str(tmp_path / "this_module_is_new.py") in names
