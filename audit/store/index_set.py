"""The indices of a commit, in a file of their own: which commit holds a sample is known without opening its parts.

A loader that shuffles spreads indices over all parts, so that the bounds in the manifest exclude none. Then a commit also writes
its distinct indices, sorted, as little-endian integers, in pages. The file begins with the number of pages, their SHA-256
digests and the first index of each; its name has the SHA-256 of this beginning. So one page is read and checked to look for a
sample, however many the commit has. Files of earlier versions have no pages, and the SHA-256 of all their bytes in the name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from audit.store.schema import SCHEMAS

INDICES_FOLDER = "indices"
PAGES_FOLDER = "index_pages"
#: A commit with fewer distinct indices than this has no such file: reading its parts is quick.
_LEAST = 4_096
#: Nor has one whose indices fill this share of their range: bounds tell as much.
_DENSE = 1 / 8
_PAGE = 1_024
#: No commit has more: see MOST_ROWS of the manifest.
_MOST_PAGES = 2**16
_DIGEST = 32
_NAME = re.compile(rf"({INDICES_FOLDER}|{PAGES_FOLDER})/([0-9a-f]{{64}})\.(u4|i8)")
#: What is read of a file at first: the beginning of one with a hundred thousand indices.
_FIRST_BYTES = 4_096

#: The column that is looked at, by table.
INDEXED_COLUMNS = {name: ("index",) for name, schema in SCHEMAS.items() if "index" in schema.names}

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.uint32]
#: Returns up to so many bytes from an offset of a file.
ReadAt = Callable[[int, int], bytes]


def index_set_of(tables: Iterable[pa.Table]) -> tuple[str, bytes] | None:
    """Return the name and the bytes of the file for a commit of these tables; None where it needs none."""
    # Only writers need it, and loading it is a tenth of what a process that reads has to load.
    import pyarrow.compute as pc

    columns = [table["index"].combine_chunks() for table in tables if "index" in table.column_names]
    if not columns or max(map(len, columns)) < _LEAST:
        return None
    bounds = [pc.min_max(column) for column in columns if len(column) > column.null_count]
    span = max(one["max"].as_py() for one in bounds) - min(one["min"].as_py() for one in bounds) + 1 if bounds else 0
    # Some table has one row for each sample: without sorting it is known that a run in order needs no file.
    if min(len(column) for column in columns if len(column)) > _DENSE * span:
        return None
    found = np.unique(np.concatenate([np.asarray(column.drop_null(), dtype=np.int64) for column in columns]))
    if len(found) < _LEAST or len(found) > _DENSE * (int(found[-1]) - int(found[0]) + 1):
        return None
    kind = "u4" if found[0] >= 0 and found[-1] < 2**32 else "i8"
    numbers = found.astype(f"<{kind}")
    pages = [numbers[start : start + _PAGE].tobytes() for start in range(0, len(numbers), _PAGE)]
    digests = b"".join(hashlib.sha256(page).digest() for page in pages)
    beginning = len(pages).to_bytes(4, "little") + digests + numbers[::_PAGE].tobytes()
    return f"{PAGES_FOLDER}/{hashlib.sha256(beginning).hexdigest()}.{kind}", b"".join((beginning, *pages))


def is_index_set(file: str, folder: str) -> bool:
    """Return whether it can be the name of a file of indices in that folder."""
    name = _NAME.fullmatch(file)
    return name is not None and name[1] == folder


def has_pages(file: str) -> bool:
    """Return whether a file of indices has pages."""
    return file.startswith(f"{PAGES_FOLDER}/")


class IndexPages:
    """The beginning of a file of indices: the first index of each page, and the page's digest."""

    __slots__ = ("_digests", "_end", "_first", "_kind")

    def __init__(self, file: str, read_at: ReadAt) -> None:
        """Read the beginning; ValueError where it does not have the digest in the file's name."""
        name = _NAME.fullmatch(file)
        data = read_at(0, _FIRST_BYTES)
        count = int.from_bytes(data[:4], "little")
        if name is None or not 0 < count <= _MOST_PAGES:
            raise ValueError("it has no pages of indices")
        self._kind = np.dtype(f"<{name[3]}")
        self._end = 4 + count * (_DIGEST + self._kind.itemsize)
        data = data[: self._end] if self._end <= len(data) else read_at(0, self._end)
        if len(data) != self._end or hashlib.sha256(data).hexdigest() != name[2]:
            raise ValueError("its beginning has other bytes than were written")
        self._digests = data[4 : 4 + count * _DIGEST]
        self._first = np.frombuffer(data, self._kind, count, 4 + count * _DIGEST)

    def holds(self, index: int, read_at: ReadAt) -> bool:
        """Return whether an index is listed; ValueError where the page that it would be on is damaged."""
        limits = np.iinfo(self._kind)
        if not limits.min <= index <= limits.max:
            return False
        wanted = self._kind.type(index)
        page = int(self._first.searchsorted(wanted, "right")) - 1
        if page < 0:
            return False
        found = self.page(page, read_at)
        place = int(found.searchsorted(wanted))
        return place < len(found) and bool(found[place] == wanted)

    def page(self, number: int, read_at: ReadAt) -> Numbers:
        """Return the indices on one page; ValueError where they do not have its digest."""
        size = _PAGE * self._kind.itemsize
        data = read_at(self._end + number * size, size)
        if hashlib.sha256(data).digest() != self._digests[number * _DIGEST : (number + 1) * _DIGEST]:
            raise ValueError("a page of it has other bytes than were written")
        return np.frombuffer(data, self._kind)

    def all(self, read_at: ReadAt) -> Numbers:
        """Return every index, page after page."""
        return np.concatenate([self.page(number, read_at) for number in range(len(self._first))])

    def fits(self, length: int) -> bool:
        """Return whether a file of so many bytes has all its pages, and nothing behind them."""
        page = _PAGE * self._kind.itemsize
        return 0 <= self._end + len(self._first) * page - length < page


def read_index_set(file: str, data: bytes) -> Numbers | None:
    """Return the indices in a file's bytes; None where these are not what was written."""
    name = _NAME.fullmatch(file)
    if name is not None and has_pages(file):
        return _read_pages(file, data)
    if name is None or hashlib.sha256(data).hexdigest() != name[2]:
        return None
    return np.frombuffer(data, f"<{name[3]}")


def _read_pages(file: str, data: bytes) -> Numbers | None:
    def read_at(offset: int, count: int) -> bytes:
        return data[offset : offset + count]

    try:
        pages = IndexPages(file, read_at)
        found = pages.all(read_at)
    except ValueError:
        return None
    # A search relies on the order.
    return found if pages.fits(len(data)) and bool((found[1:] > found[:-1]).all()) else None
