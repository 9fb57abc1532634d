"""Which parts truly hold a sample: decided from the index column alone, which is kept once it has been read.

A loader that shuffles spreads indices over all parts, so that the bounds in the manifest exclude none of them, and
DuckDB would open every part and decode a row group of each. Where a commit has a file of its indices (see index_set),
no part is opened that does not hold the sample, and of the file one page is read. This only narrows the choice of files; the rows themselves
are read by DuckDB.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from audit.errors import StoreDamaged
from audit.store.filesystem import Filesystem
from audit.store.index_set import IndexPages, Numbers, has_pages, read_index_set
from audit.store.local_filesystem import LocalFilesystem
from audit.store.manifest import MOST_ROWS
from audit.store.plain_arrays import numbers_of

#: What the kept indices may take together: those of about sixteen million samples.
_MOST_BYTES = 64 * 2**20

Key = tuple[int, bytes]


class Indices:
    """The distinct indices of a part, in order, as distances from the least: four bytes each."""

    __slots__ = ("_last", "distances", "key", "least")

    def __init__(self, found: npt.NDArray[np.int64]) -> None:
        self.least = int(found[0]) if len(found) else 0
        near = len(found) and int(found[-1]) - self.least < 2**32
        self.distances = (found - self.least).astype(np.uint32) if near else found.astype(object) - self.least
        self.key = (self.least, hashlib.blake2b(found.tobytes(), digest_size=16).digest())
        #: What was asked last, and the answer: a sample's parts are asked for table by table.
        self._last: tuple[int | None, bool] = (None, False)

    def __contains__(self, index: int) -> bool:
        last = self._last
        if last[0] != index:
            last = self._last = (index, self._has(index))
        return last[1]

    def _has(self, index: int) -> bool:
        wanted, distances = index - self.least, self.distances
        if not len(distances) or not 0 <= wanted <= int(distances[-1]):
            return False
        return bool(distances[np.searchsorted(distances, distances.dtype.type(wanted))] == wanted)


class IndexLookup:
    """Answers whether a part has a row of some index. `opened` gives a part's file by its name, `filesystem` any file."""

    def __init__(self, opened: Callable[[str], Any], filesystem: Filesystem) -> None:
        self._open = opened
        self._filesystem = filesystem
        #: Parts of several tables that were written together hold the same indices: kept once.
        self._keys: dict[str, Key] = {}
        self._kept: dict[Key, Indices] = {}
        self._bytes = 0
        #: Files of indices, by path.
        self._sets: dict[str, Numbers] = {}
        self._set_bytes = 0
        #: Beginnings of files of indices, by path; what was last asked of each, and the answer.
        self._pages: dict[str, IndexPages] = {}
        self._answers: dict[str, tuple[int, bool]] = {}
        self._chance = random.Random(0)
        self._lock = threading.Lock()

    def holds(self, name: str, index: int, listed: str | None = None) -> bool:
        """Return whether the part of that name has a row of that index; with `listed`, the commit's file of indices, whether it may."""
        if listed is not None:
            return self._is_listed(listed, index)
        key = self._keys.get(name)
        found = self._kept.get(key) if key else None
        if found is None:
            found = Indices(_distinct_values(self._read(name)))
            with self._lock:
                self._keep(name, found)
        return index in found

    def _is_listed(self, path: str, index: int) -> bool:
        """Return whether a commit's file lists an index: of ten million samples, a few hundred files are asked."""
        # In a bucket one request for the whole file takes less time than one for each page.
        if not has_pages(_below_run(path)) or not isinstance(self._filesystem, LocalFilesystem):
            return _is_among(self._read_indices(path), index)
        last = self._answers.get(path)
        if last is None or last[0] != index:
            last = self._answers[path] = (index, self._is_on_a_page(path, index))
        return last[1]

    def _is_on_a_page(self, path: str, index: int) -> bool:
        try:
            with closing(self._filesystem.open(path)) as reader:
                pages = self._pages.get(path)
                if pages is None:
                    pages = self._pages[path] = IndexPages(_below_run(path), reader.read_at)
                return pages.holds(index, reader.read_at)
        except OSError as error:
            raise _unreadable_error(path, error) from error
        except ValueError as error:
            raise _change_error(path) from error

    def _read_indices(self, path: str) -> Numbers:
        """Return the indices in a commit's file, as they lie there."""
        found = self._sets.get(path)
        if found is None:
            found = self._read_listed(path)
            with self._lock:
                self._sets[path] = found
                self._set_bytes += found.nbytes
                while self._set_bytes > _MOST_BYTES and len(self._sets) > 1:
                    self._set_bytes -= self._sets.pop(self._chance.choice(list(self._sets))).nbytes
        return found

    def _read_listed(self, path: str) -> Numbers:
        try:
            found = read_index_set(_below_run(path), self._filesystem.read(path))
        except OSError as error:
            raise _unreadable_error(path, error) from error
        if found is None:
            raise _change_error(path)
        return found

    def _keep(self, name: str, found: Indices) -> None:
        self._keys[name] = found.key
        if self._kept.setdefault(found.key, found) is found:
            self._bytes += found.distances.nbytes
        while self._bytes > _MOST_BYTES and len(self._kept) > 1:
            # Not the oldest: every trace asks all parts in turn, so that all would be forgotten before they are asked.
            forgotten = self._kept.pop(self._chance.choice(list(self._kept)))
            self._bytes -= forgotten.distances.nbytes

    def _read(self, name: str) -> npt.NDArray[np.int64]:
        handle = self._open(name)
        try:
            with pa.PythonFile(handle, mode="r") as file:
                reader = pq.ParquetFile(file, pre_buffer=False, page_checksum_verification=True)
                if reader.metadata.num_rows > MOST_ROWS:
                    raise OSError(f"it claims {reader.metadata.num_rows} rows")
                column = reader.read(columns=["index"], use_threads=False)["index"]
            # Not by `np.asarray`: that loads pandas, which takes longer than the whole first answer.
            return numbers_of(column.cast(pa.int64()).drop_null())
        except (OSError, pa.ArrowException) as error:
            raise StoreDamaged(
                f"A part of the store cannot be read ({name}): {error}",
                hint="See what is damaged with: audit store verify",
            ) from error
        finally:
            handle.close()


def _distinct_values(found: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the distinct values in order; a part is written in order of index, so that it need not be sorted again."""
    if len(found) and not (found[:-1] <= found[1:]).all():
        found = np.sort(found)
    first = np.ones(len(found), dtype=bool)
    np.not_equal(found[1:], found[:-1], out=first[1:])
    return found[first]


def _is_among(found: Numbers, index: int) -> bool:
    if not len(found) or not int(found[0]) <= index <= int(found[-1]):
        return False
    return bool(found[np.searchsorted(found, found.dtype.type(index))] == index)


def _below_run(path: str) -> str:
    """Return the path of a file below its run's folder."""
    return "/".join(path.rsplit("/", 2)[1:])


def _unreadable_error(path: str, error: OSError) -> StoreDamaged:
    return StoreDamaged(
        f"{path} of the store cannot be read: {error.strerror}.",
        hint="Open the store again: another process may have merged or removed the run. Else see: audit store verify",
    )


def _change_error(path: str) -> StoreDamaged:
    return StoreDamaged(
        f"{path} of the store has other bytes than were written.", hint="See what is damaged with: audit store verify"
    )
