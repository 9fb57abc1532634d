"""Ordinary Parquet files, not parts of a store: a user's manifest is read, a query's answer is written.

It lives here because only the store imports pyarrow. It reads local files by their exact path and expands no pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from audit.errors import DatasetError
from audit.texts import path_as_utf8


def parquet_columns(path: str) -> list[str]:
    """Return the names of the file's top-level columns."""
    return _read(path, lambda file: list(file.schema_arrow.names))  # type: ignore[no-any-return]


def read_parquet_rows(path: str, columns: Sequence[str] | None = None) -> dict[str, list[Any]]:
    """Return the columns (all, unless named) as lists of Python values."""
    wanted = None if columns is None else list(columns)
    return _read(path, lambda file: file.read(columns=wanted).to_pydict())  # type: ignore[no-any-return]


def _read(path: str, action: Any) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # An open file, not a path: pyarrow would take some names for URIs.
        with open(path, "rb") as handle:
            return action(pq.ParquetFile(handle))
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(
            f"The Parquet file {path_as_utf8(path)} cannot be read: {error}.",
            hint="Write it again, or give the manifest as .csv or .jsonl.",
        ) from error


def write_table(table: Any, path: str) -> None:
    """Write an Arrow table as a Parquet file."""
    import pyarrow.parquet as pq

    with open(path, "wb") as handle:
        pq.write_table(table, handle, compression="zstd")
