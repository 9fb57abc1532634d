"""A private place over some runs of a store where the results of one query can be kept for the next.

Long comparisons need the same join many times. The tables kept here live in memory, and beyond a limit in a temporary
folder; they are seen by no other connection and end with it. The store itself stays as unreachable for writing as it is for any query. It takes
the queries of this package's own modules and never a user's: those go through `Reader.sql`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, NewType

import duckdb

from audit.store.read.connection import Spill, connect
from audit.store.read.reader import Reader, may_hold, read_parts
from audit.store.read.relation import translate_errors
from audit.store.read.rows import Row, as_rows

#: What DuckDB may take before it writes to disk: a comparison of ten million samples then stays below 2 GB.
_MEMORY = 1550 * 2**20

#: The name of a table that a Scratch keeps, as SQL.
TempTable = NewType("TempTable", str)


class Scratch:
    """Queries over the runs that were named, and over what was kept of earlier ones."""

    def __init__(self, reader: Reader, runs: Iterable[str]) -> None:
        chosen = tuple(sorted({reader.run(reference).run_id for reference in runs}))
        self._folder = tempfile.TemporaryDirectory(prefix="audit-scratch-")
        manifests = [reader.manifest(run_id) for run_id in chosen]
        self._session = connect(
            reader.filesystem, manifests, Spill(self._folder.name, _MEMORY), verify=reader.verify_reads
        )
        self._connection = self._session.cursor()

    def rows_between(self, table: str, run_id: str, first: int, last: int) -> str:
        """Return the SQL that reads a run's table from the parts that may have rows of indices from `first` to `last`."""
        # DuckDB would open every part to see that: for each of many ranges, the square of a run's length.
        parts = self._session.parts_of(table)
        found = [(name, part) for name, owner, part in parts if owner == run_id and may_hold(part, first, last)]
        return read_parts(table, found) if found else table

    def keep(self, name: str, query: str) -> TempTable:
        """Run a query, keep its rows as a temporary table, and return the table."""
        self._execute(f'CREATE OR REPLACE TEMP TABLE "{name}" AS {query}')
        return TempTable(f'temp."{name}"')

    def name(self, name: str, query: str) -> TempTable:
        """Give a query a name, and return it as a table that is made of it whenever it is read."""
        self._execute(f'CREATE OR REPLACE TEMP VIEW "{name}" AS {query}')
        return TempTable(f'temp."{name}"')

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        """Run an UPDATE of a temporary table, or an INSERT into one."""
        self._execute(statement, parameters)

    def drop(self, table: TempTable) -> None:
        """Remove a temporary table."""
        self._execute(f"DROP TABLE IF EXISTS {table}")

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the answer to a query over the runs and the kept tables, as tuples."""
        return self._execute(query, parameters).fetchall()

    def row(self, query: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the first row of an answer that always has one."""
        return self.rows(query, parameters)[0]

    def typed_rows(self, row: type[Row], query: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Return the answer as rows of a TypedDict or dataclass that has exactly its columns."""
        result = self._execute(query, parameters)
        return as_rows(row, [column[0] for column in result.description or ()], result.fetchall())

    def _execute(self, query: str, parameters: Sequence[Any] = ()) -> duckdb.DuckDBPyConnection:
        self._session.serve(query)
        with translate_errors(self._session.files):
            return self._connection.execute(query, list(parameters))

    def close(self) -> None:
        """Let go of everything that was kept."""
        self._connection.close()
        self._session.close()
        self._folder.cleanup()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
