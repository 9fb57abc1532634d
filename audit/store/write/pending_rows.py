"""Rows that wait until they are written as parts.

They come as many small tables, one for each batch. A table of a few rows takes several times the memory of its values, so
small ones are merged, and compressed until they are written (see compressed_table.py). Rows that come as they were gathered (see
stamped_rows.py) are made into tables together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from audit.store.compressed_table import CompressedRows, CompressedTable
from audit.store.stamped_rows import Rows, StampedRows, join_stamped_tables, tables_of
from audit.store.wire import PACKED_SCHEMAS

#: A part is written when this much has gathered, or when enough time has passed.
FLUSH_BYTES = 32 * 2**20
FLUSH_ROWS = 160_000
#: How many tables are merged at once, and how large they may be together.
_MERGED_TABLES = 64
_MERGED_BYTES = 2**20
#: Tables with this column hold values that are compressed already: larger ones are merged, and none that copying gains nothing for.
_BLOBS = "data"
_MERGED_BLOB_BYTES = 4 * 2**20
#: So many batches, or so many of their rows, are made into tables together.
_JOINED_BATCHES = 64
_JOINED_ROWS = 4096


class PendingRows:
    """Gathers rows by table, in the order in which they come."""

    def __init__(self) -> None:
        self._tables: dict[str, list[pa.Table | CompressedRows]] = {}
        #: Batches whose rows are not in tables yet, each with the tables that belong to it.
        self._batches: list[tuple[StampedRows, Mapping[str, Rows]]] = []
        #: How many rows these have, about how many bytes, and the tables that they are of.
        self._rows_of_batches = self._bytes_of_batches = 0
        self._names_of_batches: set[str] = set()
        #: By table, how many of its last tables were not merged yet, and their bytes.
        self._small: dict[str, tuple[int, int]] = {}
        self._bytes = 0
        self._rows = 0
        #: What could not be made into tables, in sentences.
        self.losses: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._tables or self._batches)

    @property
    def is_enough(self) -> bool:
        """Whether so much has gathered that it is to be written."""
        return self._bytes + self._bytes_of_batches >= FLUSH_BYTES or self._rows >= FLUSH_ROWS

    def add(self, tables: Mapping[str, Rows], stamped: StampedRows | None = None, size: int = 0) -> None:
        """Take rows that belong together: of several tables, and of a batch whose rows, of about `size` bytes, are not in tables yet."""
        if stamped is None:
            if tables.keys() & self._names_of_batches:
                # The rows of a table stay in the order in which they come.
                self._join()
            self._add_tables(join_stamped_tables([tables]))
            return
        self._batches.append((stamped, tables))
        self._rows_of_batches += stamped.count
        self._bytes_of_batches += size
        self._names_of_batches.update(PACKED_SCHEMAS, tables)
        if len(self._batches) >= _JOINED_BATCHES or self._rows_of_batches >= _JOINED_ROWS:
            self._join()

    def _join(self) -> None:
        """Make the rows of batches into tables."""
        if not self._batches:
            return
        batches = self._batches
        self._forget_batches()
        try:
            made = [
                tables_of([stamped for stamped, _ in batches]),
                join_stamped_tables([tables for _, tables in batches]),
            ]
        except Exception:
            made = self._make_each(batches)
        for tables in made:
            self._add_tables(tables)

    def _make_each(self, batches: list[tuple[StampedRows, Mapping[str, Rows]]]) -> list[dict[str, pa.Table]]:
        """Return the tables of each batch by itself, without a batch of which a value fits into no column."""
        made = []
        for stamped, tables in batches:
            try:
                made.append({**stamped.tables(), **join_stamped_tables([tables])})
            except Exception as error:
                batch, epoch = stamped.stamp.batch, stamped.stamp.epoch
                self.losses.append(
                    f"the rows of batch {batch} of epoch {epoch} were lost: {type(error).__name__}: {error}"
                )
        return made

    def _add_tables(self, tables: Mapping[str, pa.Table]) -> None:
        for name, table in tables.items():
            if table.num_rows:
                # `nbytes` looks at every slice, and takes a hundred times as long.
                size = table.get_total_buffer_size()
                self._bytes += size
                self._rows += table.num_rows
                self._add(name, table, size)

    def _add(self, name: str, table: pa.Table, size: int) -> None:
        """Take one table; put the last ones together if they are many or large enough."""
        tables = self._tables.setdefault(name, [])
        has_blobs = _BLOBS in table.column_names
        count, total = self._small.get(name, (0, 0))
        count, total = count + 1, total + size
        # Of a batch's few rows, each column would take several times the memory of its values.
        tables.append(table if has_blobs else table.combine_chunks())
        if count >= _MERGED_TABLES or total >= (_MERGED_BLOB_BYTES if has_blobs else _MERGED_BYTES):
            if not has_blobs:
                tables[-count:] = [pa.concat_tables(tables[-count:]).combine_chunks()]
                if len(tables) > 1:
                    # Not the rows of a short run: to compress them takes longer than to write them.
                    tables[:] = [CompressedRows(rows) if isinstance(rows, pa.Table) else rows for rows in tables]
                # Arrow would keep what the tables took.
                pa.default_memory_pool().release_unused()
            elif count > 1 and total < 2 * _MERGED_BLOB_BYTES:
                tables[-count:] = [pa.concat_tables(tables[-count:]).combine_chunks()]
            count = total = 0
        self._small[name] = (count, total)

    def names(self) -> list[str]:
        """Return the names of the tables that rows wait for."""
        self._join()
        return list(self._tables)

    def table(self, name: str) -> pa.Table | CompressedTable:
        """Return all rows of one table."""
        self._join()
        pieces = self._tables[name]
        is_compressed = any(isinstance(rows, CompressedRows) for rows in pieces)
        return CompressedTable(pieces) if is_compressed else pa.concat_tables(pieces)

    def select(self, columns: Mapping[str, Sequence[str]]) -> dict[str, pa.Table]:
        """Return all rows of some tables, with those of these columns that they have."""
        self._join()
        found = {}
        for name in columns.keys() & self._tables.keys():
            table = self.table(name)
            found[name] = table.select([column for column in columns[name] if column in table.column_names])
        return found

    def clear(self) -> None:
        """Forget all rows, and give their memory back to the system."""
        self._tables.clear()
        self._small.clear()
        self._bytes = self._rows = 0
        self._forget_batches()
        pa.default_memory_pool().release_unused()

    def _forget_batches(self) -> None:
        self._batches = []
        self._rows_of_batches = self._bytes_of_batches = 0
        self._names_of_batches = set()
