"""Read a table file of any of the four formats into columns, with the place of each row for error messages.

Text that is not UTF-8 is kept byte for byte, since it may be a file's name. It guesses nothing about a row that
does not fit the header: a row too short or too long is an error with its line number.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from audit.errors import DatasetError
from audit.sources.files import to_printable


@dataclass(slots=True)
class Table:
    """Columns of equal length; a cell that is absent is None, one that is empty in a text file is an empty text."""

    shown: str
    columns: dict[str, list[Any]]
    lines: list[int] = field(default_factory=list)
    """The line that each row ends on, in a text file."""
    all_names: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Return names of all columns in the file, also of those that were not read."""
        return self.all_names or list(self.columns)

    def find(self, wanted: Sequence[str]) -> str | None:
        """Return the first column with one of these names, ignoring case and surrounding spaces."""
        known = {name.strip().lower(): name for name in reversed(self.columns)}
        return next((known[name] for name in wanted if name in known), None)

    def place(self, row: int) -> str:
        """Return the place of a row, for messages."""
        return f"line {self.lines[row]}" if self.lines else f"row {row}"


def read_table(path: str, wanted: Sequence[str]) -> Table:
    """Return the table in the file; from Parquet, only the wanted columns are read."""
    shown = to_printable(os.fsencode(path))
    if path.lower().endswith(".parquet"):
        return _parquet(path, shown, wanted)
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            if path.lower().endswith((".jsonl", ".ndjson")):
                return _json_lines(file, shown)
            return _read_separated(file, shown, "\t" if path.lower().endswith(".tsv") else None)
    except OSError as error:
        raise DatasetError(
            f"The manifest {shown} cannot be read: {error.strerror}.", hint="Make it readable."
        ) from error


def _parquet(path: str, shown: str, wanted: Sequence[str]) -> Table:
    from audit.store.tabular import parquet_columns, read_parquet_rows

    names = parquet_columns(path)
    chosen = [name for name in names if name.strip().lower() in wanted]
    return Table(shown, read_parquet_rows(path, chosen) if chosen else {}, all_names=names)


def _read_separated(file: TextIO, shown: str, delimiter: str | None) -> Table:
    limit = csv.field_size_limit(sys.maxsize)  # a text of more than 128 KiB is nothing unusual here
    try:
        if delimiter is None:
            delimiter = _delimiter(file)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header = next(reader, [])
        _require_distinct(header, shown)
        rows: list[list[Any]] = [[] for _ in header]
        lines: list[int] = []
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise DatasetError(
                    f"Line {reader.line_num} of the manifest {shown} has {len(cells)} cells, the header {len(header)}.",
                    hint="Give every row as many cells as the header; quote a cell that holds the separator.",
                )
            for column, cell in zip(rows, cells, strict=True):
                column.append(cell)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise DatasetError(
            f"In the manifest {shown}, line {reader.line_num}: {error}.", hint="Fix that line."
        ) from error
    finally:
        csv.field_size_limit(limit)
    return Table(shown, dict(zip(header, rows, strict=True)), lines)


def _delimiter(file: TextIO) -> str:
    """Return a comma, or a semicolon if the header has semicolons and no comma, as some spreadsheets write."""
    header = file.readline()
    file.seek(0)
    return ";" if "," not in header and ";" in header else ","


def _require_distinct(header: list[str], shown: str) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DatasetError(f"The manifest {shown} has two columns called {twice[0]!r}.", hint="Rename one of them.")


def _json_lines(file: Iterable[str], shown: str) -> Table:
    columns: dict[str, list[Any]] = {}
    lines: list[int] = []
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        row = _json_row(line, number, shown)
        for name in row.keys() - columns.keys():
            columns[name] = [None] * len(lines)
        for name, column in columns.items():
            column.append(row.get(name))
        lines.append(number)
    return Table(shown, columns, lines)


def _json_row(line: str, number: int, shown: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DatasetError(
            f"In the manifest {shown}, line {number} is not JSON: {error}.", hint="Write one JSON object per line."
        ) from None
    if not isinstance(row, dict):
        raise DatasetError(
            f"In the manifest {shown}, line {number} is not a JSON object.",
            hint='Write one object per line, such as {"path": "1.jpg"}.',
        )
    return row
