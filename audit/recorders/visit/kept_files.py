"""Files that a dataset keeps open from one item to the next: which of its items are read from them.

A file that is opened for one item and kept is opened for no other. An open file of Python's has a position: an item during
which it moved was read from the file. Archives, HDF5 and memory-mapped arrays are read by methods, which tell more
(file_readers.py). What is read through other objects that hold a file is not seen, and audit says so: the system tells which
files are open (open_descriptors.py), whatever holds them.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch.utils.data import Dataset

from audit.recorders.calls.callables import dict_of, is_a, items_of
from audit.recorders.files.file_readers import FOLDERS, OBSERVED_FILES
from audit.recorders.files.open_descriptors import new_descriptors, open_descriptors
from audit.recorders.files.source_files import is_data_file, is_media
from audit.recorders.files.thread_files import FILES, UNKNOWN, take_unclaimed
from audit.recorders.visit.item_calls import list_wrapped_datasets

#: By the first part of their module, or of their own name: classes that read a file in a way that is not seen.
_UNSEEN_READERS = {
    "mmap": ("mmap",),
    "sqlite3": ("Connection", "Cursor"),
    "lmdb": ("Environment", "Transaction", "Cursor"),
    "builtins": ("Environment", "Transaction"),  # lmdb's own, where they are written in C
    "cv2": ("VideoCapture",),
    "decord": ("VideoReader", "AudioReader"),
    "av": ("InputContainer",),
    "pyarrow": ("ParquetFile", "RecordBatchFileReader", "MemoryMappedFile", "FileSystemDataset", "ParquetDataset"),
    "rasterio": ("DatasetReader",),
    "soundfile": ("SoundFile",),
}
_MOST_PATHS = 256
#: Most of what a dataset holds, and none of it holds a file.
_PLAIN_TYPES = frozenset({type(None), bool, int, float, str, bytes})
#: So deep, datasets that a dataset holds are looked into.
_DEEPEST = 4


class _Handle(NamedTuple):
    name: str
    file: Any
    path: str


class KeptFiles:
    """What one dataset keeps open in one process."""

    def __init__(self, dataset: Any, *, are_files_named: bool) -> None:
        """Look for open files; `are_files_named` says that it need not be known whose sources they are."""
        self._dataset = dataset
        self._are_files_named = are_files_named
        #: Files of which it is not known whose sources they are, each kind with an example.
        self._unknown: dict[str, str] = {}
        #: Open files with a position.
        self.handles: list[_Handle] = []
        self._looked_at: set[str] = set()
        #: Files that were open before the recording, and how many items were made since.
        self._before = open_descriptors()
        self._visits = 0
        # Those of an earlier recording or replay are not of this dataset.
        take_unclaimed()
        FOLDERS.clear()
        self._find()

    def positions(self) -> list[int | None]:
        """Return where each of the open files is."""
        return [_position(handle.file) for handle in self.handles]

    def is_due(self) -> bool:
        """Count an item; return whether the dataset is to be looked at: after 1, 2, 8, 32, 128… items."""
        self._visits += 1
        return _is_looked_at_after(self._visits)

    def count_items(self, count: int) -> None:
        """Count items after none of which the dataset is to be looked at."""
        self._visits += count

    @property
    def items_until_due(self) -> int:
        """After how many more items the dataset is not to be looked at yet."""
        following = 1 << self._visits.bit_length()
        return following - 1 - self._visits if _is_looked_at_after(following) else 2 * following - 1 - self._visits

    def look_again(self, opened: Sequence[str]) -> None:
        """Look for files that the dataset has opened since and keeps open; `opened` are those that the last item opened."""
        self._find()
        known = {
            os.path.realpath(path) for path in (*opened, *OBSERVED_FILES, *(handle.path for handle in self.handles))
        }
        for path in new_descriptors(self._before):
            if path not in known and not is_media(path) and is_data_file(path):
                self._note_unknown(f"the file {path} stays open")

    def end_visit(self, opened: list[str], before: Sequence[int | None]) -> None:
        """Add the files that moved since they were at `before` to the ones that a visit opened, and look for new ones."""
        for handle, place in zip(self.handles, before, strict=False):
            if place is not None and _position(handle.file) not in (place, None):
                opened.append(handle.path)
            else:
                # Where an item is read twice in a row, the file ends where it began.
                self._note_unknown(f"the file {handle.path} in {handle.name} stays open")
        fresh = [path for path in opened if path not in self._looked_at]
        if fresh and (len(self._looked_at) < _MOST_PATHS or not all(map(is_media, fresh))):
            if len(self._looked_at) < _MOST_PATHS:
                self._looked_at.update(fresh)
            self._find()
        self.end_batch()

    def end_batch(self) -> None:
        """Note files that were opened in threads which go on after the item, or the batch, and of folders of tables."""
        while FOLDERS:
            self._note_unknown(f"files of the folder {FOLDERS.pop()}")
        if (FILES or UNKNOWN) and (found := [path for path in take_unclaimed() if is_data_file(path)]):
            self._note_unknown("files that were opened in threads of its own", f", such as {found[0]}")

    def _find(self) -> None:
        # An attribute may be anything, and raise anything when it is asked.
        with contextlib.suppress(Exception):
            self._look()

    def _look(self) -> None:
        found = []
        for name, held in _list_held(self._dataset):
            if is_a(held, io.IOBase):
                path = getattr(held, "name", None)
                if not held.closed and isinstance(path, (str, bytes)) and not _writes(held):
                    found.append(_Handle(name, held, os.path.abspath(os.fsdecode(path))))
            elif type(held).__name__ in _UNSEEN_READERS.get(type(held).__module__.partition(".")[0], ()):
                self._note_unknown(f"{name} ({type(held).__name__}) stays open")
        self.handles = found

    def _note_unknown(self, what: str, example: str = "") -> None:
        if not self._are_files_named:
            self._unknown.setdefault(what, example)

    def take_unknown(self) -> dict[str, str]:
        """Return the files, since the last call, of which it is not known whose sources they are: kinds and an example of each."""
        found, self._unknown = self._unknown, {}
        return found


def _is_looked_at_after(count: int) -> bool:
    return not count & (count - 1) and (count == 1 or count.bit_length() % 2 == 0)


def _list_held(dataset: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the values that a dataset and its inner datasets hold, with the names that lead there."""
    for part in list_wrapped_datasets(dataset):
        for name, held in list(dict_of(part).items()):
            if type(held) in _PLAIN_TYPES:
                continue
            found = [(name, held)]
            if is_a(held, (list, tuple, dict)):
                places = enumerate(item for _, item in items_of(held)) if not is_a(held, dict) else items_of(held)
                found += [(f"{name}[{key!r}]", item) for key, item in places if type(item) not in _PLAIN_TYPES]
            for place, value in found:
                yield place, value
                if depth < _DEEPEST and is_a(value, Dataset) and name not in ("dataset", "datasets"):
                    yield from ((f"{place}.{inner}", one) for inner, one in _list_held(value, depth + 1))


def _writes(file: Any) -> bool:
    try:
        return bool(file.writable())
    except Exception:
        return True


def _position(file: Any) -> int | None:
    """Return the place in a file; None where it does not tell, as while its lines are iterated."""
    try:
        return int(file.tell())
    except Exception:
        return None
