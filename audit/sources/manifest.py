"""A table with one row for each sample: .csv, .tsv, .jsonl or .parquet.

A column names the file, relative to the manifest's own folder, or holds the text itself; others may give the label
and the split. Labels that are whole numbers are kept, with the names of a column `label_name` or `class_name` beside them;
names alone are numbered in text order. Every row is a sample, even
if its file does not exist: it fails when it is read. It refuses a table with incomplete rows or missing labels.
"""

from __future__ import annotations

import os
from typing import Any

from audit.errors import DatasetError
from audit.sources.base import FileDataset, Options, TextDataset
from audit.sources.files import PackedNames, to_printable
from audit.sources.manifest_tables import Table, read_table

description = "a .csv, .tsv, .jsonl or .parquet manifest with a column of paths"
runs_no_code = True

PATH_COLUMNS = (
    "path", "file", "filename", "file_name", "filepath", "file_path",
    "image", "image_path", "img", "img_path", "source", "src",
)  # fmt: skip
NAME_COLUMNS = ("label_name", "class_name")
LABEL_COLUMNS = ("label", "class", "target", "y", "category", *NAME_COLUMNS)
_MOST_CLASSES = 1_000_000
TEXT_COLUMNS = ("text",)
SPLIT_COLUMNS = ("split",)
_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


def recognise(spec: str) -> bool:
    """Return whether it is a file with the ending of a table."""
    return spec.lower().endswith(_ENDINGS) and os.path.isfile(spec)


def open_source(spec: str, options: Options) -> FileDataset:
    """Return one sample for each row, in the table's order."""
    table = read_table(spec, (*PATH_COLUMNS, *LABEL_COLUMNS, *TEXT_COLUMNS, *SPLIT_COLUMNS))
    path, text = table.find(PATH_COLUMNS), table.find(TEXT_COLUMNS)
    if not table.names:
        raise DatasetError(
            f"The manifest {table.shown} is empty.", hint="Give it a header and one row for each sample."
        )
    if path is None and text is None:
        raise DatasetError(
            f"The manifest {table.shown} has no column of paths; its columns are: {', '.join(table.names) or 'none'}.",
            hint="Name the column of files path, or the column of texts text. "
            f"Other accepted names for files: {', '.join(PATH_COLUMNS[1:])}.",
        )
    values = table.columns[path or text or ""]
    if not values:
        raise DatasetError(f"The manifest {table.shown} has no rows.", hint="Give it one row for each sample.")
    labels, classes = _labels(table)
    notes = _note_unlabelled(table) if labels is None else []
    more: dict[str, Any] = {"labels": labels, "classes": classes, "splits": _splits(table), "notes": notes}
    if path is None:
        missing = [row for row, value in enumerate(values) if value is None]
        texts = PackedNames(_as_text(value).encode("utf-8", "surrogatepass") for value in values)
        return TextDataset(spec, texts, options, missing=missing, **more)
    folder = os.path.dirname(os.path.abspath(spec))
    return FileDataset(folder, PackedNames(_as_path(table, path, row) for row in range(len(values))), options, **more)


def _as_text(value: Any) -> str:
    return "" if value is None else str(value)


def _as_path(table: Table, column: str, row: int) -> bytes:
    """Return the row's path; an empty cell gives an empty path, which fails when it is read."""
    value = table.columns[column][row]
    if _is_empty(value):
        return b""
    if not isinstance(value, str):
        raise DatasetError(
            f"In {table.place(row)} of the manifest {table.shown}, {column} must be a path, got {_brief(value)}.",
            hint="Give each file's path as text, relative to the manifest's folder.",
        )
    try:
        return os.fsencode(value)
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass")  # no file has such a name; reading it fails


def _splits(table: Table) -> list[str | None] | None:
    column = table.find(SPLIT_COLUMNS)
    if column is None:
        return None
    return [None if _is_empty(value) else to_printable(os.fsencode(str(value))) for value in table.columns[column]]


def _labels(table: Table) -> tuple[list[int] | None, list[str] | None]:
    """Return class indices, and the class names where labels are names."""
    found = [
        name for name in LABEL_COLUMNS if (one := table.find([name])) and not all(map(_is_empty, table.columns[one]))
    ]
    column = table.find(found)
    if column is None:
        return None, None
    values = table.columns[column]
    empty = [row for row, value in enumerate(values) if _is_empty(value)]
    if empty:
        raise DatasetError(
            f"In the manifest {table.shown}, the column {column} is empty in {len(empty)} of {len(values)} rows, "
            f"first in {table.place(empty[0])}.",
            hint="Label every row, or split the manifest into a labelled and an unlabelled one.",
        )
    numbers = [_to_integer(value) for value in values]
    whole = [number for number in numbers if number is not None]
    if len(whole) == len(values):
        return whole, _names_of(table, whole)
    names = [_class_name(table, column, row) for row in range(len(values))]
    classes = sorted(set(names))
    order = {name: label for label, name in enumerate(classes)}
    return [order[name] for name in names], classes


def _names_of(table: Table, labels: list[int]) -> list[str] | None:
    """Return the class names that a column gives beside the numbers; a number without one is its own name.

    None without such a column, and where its names do not belong to the numbers one to one.
    """
    column = table.find(NAME_COLUMNS)
    if column is None or min(labels) < 0 or max(labels) >= _MOST_CLASSES or any(map(_is_empty, table.columns[column])):
        return None
    named = {(label, _class_name(table, column, row)) for row, label in enumerate(labels)}
    if not len(named) == len(set(labels)) == len({name for _, name in named}):
        return None
    names = dict(named)
    return [names.get(number, str(number)) for number in range(max(labels) + 1)]


def _note_unlabelled(table: Table) -> list[str]:
    """Return a note about columns of which one may have been meant as the label."""
    known = {*PATH_COLUMNS, *TEXT_COLUMNS, *SPLIT_COLUMNS, *LABEL_COLUMNS}
    others = [name for name in table.names if name.strip().lower() not in known]
    if not others:
        return []
    shown = ", ".join(others[:5]) + (" …" if len(others) > 5 else "")
    return [
        f"The manifest {table.shown} has no column of labels, so its samples are unlabelled. It has other columns: {shown}. "
        f"A column of labels is called {', '.join(LABEL_COLUMNS[:-1])} or {LABEL_COLUMNS[-1]}."
    ]


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and value != value)


def _to_integer(value: Any) -> int | None:
    """Return the value as a number, or None if it is not one; the class name 007 is not a number."""
    if isinstance(value, str):
        digits = value.removeprefix("-")
        plain = digits.isascii() and digits.isdigit() and str(int(digits)) == digits and len(digits) < 19
        return int(value) if plain else None
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _class_name(table: Table, column: str, row: int) -> str:
    value = table.columns[column][row]
    if isinstance(value, str):
        return to_printable(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    raise DatasetError(
        f"In {table.place(row)} of the manifest {table.shown}, {column} holds {_brief(value)}, which is not a class.",
        hint="Labels are class names or whole numbers; for other targets, write a .py file that builds the Dataset.",
    )


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
