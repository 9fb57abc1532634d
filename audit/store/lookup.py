"""Which parts truly hold a sample: decided from the index column alone, which is kept once it has been read.

A loader that shuffles spreads indices over all parts, so that the bounds in the manifest exclude none of them, and
DuckDB would open every part and decode a row group of each. This only narrows the choice of files; the rows themselves
are read by DuckDB.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from audit.errors import StoreDamaged

#: What the kept indices may take together; the least recently used are forgotten first.
_MOST_BYTES = 64 * 2**20


class Lookup:
    """Answers whether a part has a row of some index. `opened` gives a part's file by its name."""

    def __init__(self, opened: Callable[[str], Any]) -> None:
        self._open = opened
        #: For each part its distinct indices in order, as distances from the least: four bytes each.
        self._kept: OrderedDict[str, tuple[int, npt.NDArray[Any]]] = OrderedDict()
        self._bytes = 0

    def holds(self, name: str, index: int) -> bool:
        """Whether the part of that name has a row of that index."""
        least, distances = self._indices(name)
        wanted = index - least
        if not len(distances) or not 0 <= wanted <= int(distances[-1]):
            return False
        return bool(distances[np.searchsorted(distances, distances.dtype.type(wanted))] == wanted)

    def _indices(self, name: str) -> tuple[int, npt.NDArray[Any]]:
        if name not in self._kept:
            found = _distinct(self._read(name))
            least = int(found[0]) if len(found) else 0
            near = len(found) and int(found[-1]) - least < 2**32
            kept = (found - least).astype(np.uint32) if near else found.astype(object) - least
            self._kept[name] = (least, kept)
            self._bytes += kept.nbytes
            while self._bytes > _MOST_BYTES and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][1].nbytes
        self._kept.move_to_end(name)
        return self._kept[name]

    def _read(self, name: str) -> npt.NDArray[np.int64]:
        handle = self._open(name)
        try:
            with pa.PythonFile(handle, mode="r") as file:
                reader = pq.ParquetFile(file, page_checksum_verification=True)
                column = reader.read(columns=["index"], use_threads=False)["index"]
            return np.asarray(column.drop_null(), dtype=np.int64)
        except (OSError, pa.ArrowException) as error:
            raise StoreDamaged(
                f"A part of the store cannot be read ({name}): {error}",
                hint="See what is damaged with: audit store verify",
            ) from error
        finally:
            handle.close()


def _distinct(found: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The distinct values in order; a part is written in order of index, so that it need not be sorted again."""
    if len(found) and not (found[:-1] <= found[1:]).all():
        found = np.sort(found)
    first = np.ones(len(found), dtype=bool)
    np.not_equal(found[1:], found[:-1], out=first[1:])
    return found[first]
