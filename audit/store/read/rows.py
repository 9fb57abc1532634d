"""Rows of a query as the type that its caller names.

The type is a TypedDict or a dataclass whose fields are the query's columns. A query that returns other columns than its type
says is an error of ours, and is raised at the first call, so that types of rows are true.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

Row = TypeVar("Row")
#: One row of a query whose columns only the query itself knows, such as a user's own.
QueryRow = dict[str, Any]


def field_names(row: type[Any]) -> tuple[str, ...]:
    """Return the names of the fields that a row of this type has, in order."""
    return tuple(field.name for field in fields(row)) if is_dataclass(row) else tuple(row.__annotations__)


def as_rows(row: type[Row], columns: Sequence[str], found: Iterable[Sequence[Any]]) -> list[Row]:
    """Return each sequence of values as a row of this type; TypeError where the columns are not its fields."""
    wanted = field_names(row)
    if set(wanted) != set(columns):
        raise TypeError(f"{row.__name__} has the fields {sorted(wanted)}, and the query returned {sorted(columns)}.")
    if is_dataclass(row):
        return [row(**dict(zip(columns, values, strict=True))) for values in found]
    # A TypedDict is a dict.
    return [dict(zip(columns, values, strict=True)) for values in found]  # type: ignore[misc]
