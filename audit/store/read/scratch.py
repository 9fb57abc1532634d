"""A private place over some runs of a store where the results of one query can be kept for the next.

Long comparisons need the same join many times. The tables kept here live in memory, are seen by no other
connection and end with it; the store itself stays as unreachable for writing as it is for any query. It takes
the queries of this package's own modules and never a user's: those go through `Reader.sql`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import duckdb

from audit.store.read.reader import Reader
from audit.store.read.relation import translated


class Scratch:
    """Queries over the runs that were named, and over what was kept of earlier ones."""

    def __init__(self, reader: Reader, runs: Iterable[str]) -> None:
        chosen = tuple(sorted({reader.run(reference).run_id for reference in runs}))
        session = reader._session(chosen, "")
        self._files = session.files
        self._connection = session.connection.cursor()

    def keep(self, name: str, query: str) -> None:
        """Run a query and keep its rows as a table."""
        self._execute(f'CREATE OR REPLACE TEMP TABLE "{name}" AS {query}')

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        """Run an UPDATE of a table that was kept."""
        self._execute(statement, parameters)

    def drop(self, name: str) -> None:
        """Let go of a table that is no longer needed."""
        self._execute(f'DROP TABLE IF EXISTS temp."{name}"')

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The answer to a query over the runs and the kept tables, as tuples."""
        return self._execute(query, parameters).fetchall()

    def row(self, query: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The first row of an answer that always has one."""
        return self.rows(query, parameters)[0]

    def dicts(self, query: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The answer as dictionaries."""
        result = self._execute(query, parameters)
        names = [column[0] for column in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def _execute(self, query: str, parameters: Sequence[Any] = ()) -> duckdb.DuckDBPyConnection:
        with translated(self._files):
            return self._connection.execute(query, list(parameters))

    def close(self) -> None:
        """Let go of everything that was kept."""
        self._connection.close()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
