"""The answer to one query, fetched in the form that is asked for.

Every fetch runs in a read-only transaction, so that no query can change the views; the look at the statement only makes
a refusal friendly.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb
import pyarrow as pa

from audit.errors import MissingExtra, QueryError
from audit.extras import EXTRAS
from audit.store.read.duckdb_files import PROTOCOL, PartFilesystem
from audit.store.read.rows import Row, as_rows

if TYPE_CHECKING:
    from audit.store.read.connection import Session

Answer = TypeVar("Answer")

#: MULTI is what PIVOT becomes.
_READ_ONLY = {"SELECT", "EXPLAIN", "MULTI"}


class Relation:
    """The answer to one query, fetched in the form that is asked for. Each fetch runs the query once."""

    def __init__(self, session: Session, query: str, parameters: list[Any]) -> None:
        self._session = session
        self._connection = session.cursor()
        self._files = session.files
        # DuckDB points at the wrong line of an error if the text begins with white space.
        self._query = query.lstrip()
        self._parameters = parameters
        self._begun = False
        #: Seconds after which a fetch is stopped; None for never.
        self.timeout: float | None = None
        #: The runs that the query can see.
        self.run_ids: tuple[str, ...] = ()
        #: How a notebook shows the answer; set by who knows how.
        self.html: Callable[[Relation], str | None] | None = None
        with translate_errors(self._files):
            statements = self._connection.extract_statements(query)
        for kind in map(_kind, statements):
            if kind not in _READ_ONLY:
                raise QueryError(
                    f"Only queries are allowed here, not {kind}: the store is read-only.",
                    hint="Save a result with: audit sql QUERY -o FILE.parquet",
                )
        if not statements:
            raise QueryError("There is no query to run.", hint="Ask for instance: FROM wrong_predictions")
        if len(statements) > 1:
            raise QueryError(
                f"These are {len(statements)} queries, but only one can be run at a time.",
                hint="Remove all but one of them.",
            )

    def _repr_html_(self) -> str | None:
        return self.html(self) if self.html is not None else None

    def _begin(self) -> None:
        """Begin a new read-only transaction: `WITH x AS (DELETE …) …` is typed SELECT, but cannot be run in one."""
        if self._begun:
            self._connection.execute("ROLLBACK")
        self._begun = False
        self._connection.execute("BEGIN TRANSACTION READ ONLY")
        self._begun = True

    def _ask(self, ask: Callable[[], Answer]) -> Answer:
        """Run the query in a new transaction. A name that is not known may be written in a way that was not recognised."""
        self._begin()
        try:
            return ask()
        except duckdb.CatalogException:
            self._session.serve(None)  # DuckDB then also suggests from all the names that there are
            self._begin()
            return ask()

    def _translate_errors(self) -> translate_errors:
        return translate_errors(self._files, self._connection, self.timeout)

    def _run(self) -> duckdb.DuckDBPyConnection:
        return self._ask(lambda: self._connection.execute(self._query, self._parameters))

    def _relation(self) -> duckdb.DuckDBPyRelation:
        return self._ask(lambda: self._connection.sql(self._query, params=self._parameters or None))

    def interrupt(self) -> None:
        """Stop the query, from another thread than the one that runs it."""
        self._connection.interrupt()

    @property
    def columns(self) -> list[str]:
        """The names of the result's columns."""
        with self._translate_errors():
            return [column[0] for column in self._run().description or ()]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows, as tuples of Python values."""
        with self._translate_errors():
            return self._run().fetchall()

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the first row, or None."""
        with self._translate_errors():
            return self._run().fetchone()

    def dicts(self) -> list[dict[str, Any]]:
        """Return all rows, as dictionaries."""
        with self._translate_errors():
            result = self._run()
            names = [column[0] for column in result.description or ()]
            return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def rows(self, row: type[Row]) -> list[Row]:
        """Return all rows, as the TypedDict or dataclass that has exactly the result's columns."""
        with self._translate_errors():
            result = self._run()
            return as_rows(row, [column[0] for column in result.description or ()], result.fetchall())

    def batches(self, size: int = 10_000) -> Iterator[tuple[list[str], list[tuple[Any, ...]]]]:
        """Yield the rows in pieces, for results larger than memory."""
        with self._translate_errors():
            result = self._run()
            names = [column[0] for column in result.description or ()]
            yield names, []
            while rows := result.fetchmany(size):
                yield names, rows

    def arrow(self) -> pa.Table:
        """Return an Arrow table."""
        with self._translate_errors():
            return self._relation().to_arrow_table()

    def arrow_batches(self, rows: int = 100_000) -> Iterator[pa.RecordBatch]:
        """Yield Arrow record batches of at most so many rows, for results larger than memory."""
        with self._translate_errors():
            yield from self._relation().to_arrow_reader(rows)

    def df(self) -> Any:
        """Return a pandas DataFrame."""
        _need("pandas", "A pandas DataFrame")
        with self._translate_errors():
            return self._run().df()

    def pl(self) -> Any:
        """Return a Polars DataFrame."""
        _need("polars", "A Polars DataFrame")
        import polars  # type: ignore[import-not-found, unused-ignore]

        return polars.from_arrow(self.arrow())


def _need(package: str, purpose: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(package, purpose, EXTRAS.get(package))


def _kind(statement: duckdb.Statement) -> str:
    try:
        return statement.type.name
    except ValueError:
        # A type that DuckDB's own Python package has no name for.
        return "such a statement"


def timeout_error(seconds: float) -> QueryError:
    """Return the error of a query that was stopped."""
    return QueryError(
        f"The query was stopped: it took longer than {seconds:g} seconds.",
        hint="Narrow it (a WHERE, a LIMIT), or give it more time: --timeout, store.sql(…, timeout=…).",
    )


class translate_errors:  # noqa: N801 - reads as a verb where it is used
    """DuckDB's errors become QueryError with DuckDB's own message, or tell of the damaged part that caused them."""

    def __init__(
        self,
        files: PartFilesystem,
        connection: duckdb.DuckDBPyConnection | None = None,
        timeout: float | None = None,
    ) -> None:
        self._files = files
        self._timeout = timeout
        self._expired = threading.Event()
        self._timer: threading.Timer | None = None
        if connection is not None and timeout is not None:
            self._timer = threading.Timer(timeout, self._stop, [connection])
            self._timer.daemon = True

    def _stop(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._expired.set()
        connection.interrupt()

    def __enter__(self) -> None:
        self._files.damage = None
        if self._timer is not None:
            self._timer.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not isinstance(error, duckdb.Error):
            return
        if self._expired.is_set() and isinstance(error, duckdb.InterruptException):
            raise timeout_error(self._timeout or 0) from error
        if isinstance(error, duckdb.OutOfMemoryException):
            raise QueryError(
                f"The query needs more memory than it may use: {str(error).strip().splitlines()[0]}",
                hint="Narrow it (a WHERE, a LIMIT), or allow more: --memory-limit 8GB, store.sql(…, memory_limit=…).",
            ) from error
        if self._files.damage is not None:
            raise self._files.damage from error
        message = str(error).strip()
        damaged = f"{PROTOCOL}://" in message and isinstance(error, (duckdb.IOException, duckdb.InvalidInputException))
        hint = "If a part may be damaged, see with: audit store verify" if damaged else None
        if isinstance(error, duckdb.PermissionException):
            hint = "A query can read the tables and views of the store, and nothing else."
        elif isinstance(error, duckdb.ParserException):
            hint = "See the tables and views with: audit sql 'SHOW TABLES'; docs/COOKBOOK.md has examples."
        raise QueryError(message, hint=hint) from error
