"""Rows that wait until they are written as parts.

They come as many small tables, one for each batch. A table of a few rows takes several times the memory of its values, so
small ones are merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

#: A part is written when this much has gathered, or when enough time has passed.
FLUSH_BYTES = 32 * 2**20
FLUSH_ROWS = 200_000
#: How many tables are merged at once, and how large they may be together; copying larger ones gains nothing.
_MERGED_TABLES = 64
_MERGED_BYTES = 4 * 2**20


class PendingRows:
    """Gathers rows by table, in the order in which they come."""

    def __init__(self) -> None:
        self._tables: dict[str, list[pa.Table]] = {}
        #: By table, how many of its last tables were not merged yet, and their bytes.
        self._small: dict[str, tuple[int, int]] = {}
        self._bytes = 0
        self._rows = 0

    def __bool__(self) -> bool:
        return bool(self._tables)

    @property
    def is_enough(self) -> bool:
        """Whether so much has gathered that it is to be written."""
        return self._bytes >= FLUSH_BYTES or self._rows >= FLUSH_ROWS

    def add(self, tables: Mapping[str, pa.Table]) -> None:
        """Take rows of several tables."""
        for name, table in tables.items():
            if table.num_rows:
                # `nbytes` looks at every slice, and takes a hundred times as long.
                size = table.get_total_buffer_size()
                self._tables.setdefault(name, []).append(table)
                self._bytes += size
                self._rows += table.num_rows
                self._merge(name, size)

    def _merge(self, name: str, size: int) -> None:
        count, total = self._small.get(name, (0, 0))
        count, total = count + 1, total + size
        if count >= _MERGED_TABLES or total >= _MERGED_BYTES:
            if count > 1 and total < 2 * _MERGED_BYTES:
                tables = self._tables[name]
                tables[-count:] = [pa.concat_tables(tables[-count:]).combine_chunks()]
            count = total = 0
        self._small[name] = (count, total)

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        """Return all rows of each table."""
        return ((name, pa.concat_tables(tables)) for name, tables in self._tables.items())

    def clear(self) -> None:
        """Forget all rows, and give their memory back to the system."""
        self._tables.clear()
        self._small.clear()
        self._bytes = self._rows = 0
        pa.default_memory_pool().release_unused()
