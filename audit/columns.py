"""A column of a stored table: its type, what it means, and when it is NULL.

A row class (audit/tables.py, `Run` and `Stage` in audit/records.py) annotates each field with its column. The Arrow schema,
the tables of docs/FORMAT.md and the types of readers all come from these annotations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import get_type_hints


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its SQL type, its meaning, and when it is NULL (None: never)."""

    sql_type: str
    meaning: str
    null: str | None = None
    #: The version of the schema that added it. Parts of older versions read as NULL there.
    since: int = 1


VARCHAR = partial(Column, "VARCHAR")
INTEGER = partial(Column, "INTEGER")
BIGINT = partial(Column, "BIGINT")
FLOAT = partial(Column, "FLOAT")
DOUBLE = partial(Column, "DOUBLE")
BOOLEAN = partial(Column, "BOOLEAN")
BLOB = partial(Column, "BLOB")
TIMESTAMP = partial(Column, "TIMESTAMP WITH TIME ZONE")
MAP = partial(Column, "MAP(VARCHAR, VARCHAR)")
VARCHARS = partial(Column, "VARCHAR[]")
BIGINTS = partial(Column, "BIGINT[]")
FLOATS = partial(Column, "FLOAT[]")

#: Every table of a run begins with it, so that a file read alone still says whose rows it holds.
RUN_ID = VARCHAR("the run")


@cache
def columns_of(row: type) -> dict[str, Column]:
    """Return the columns that a row class annotates, in order; `run_id` is first even if the class leaves it out."""
    annotated = {
        # A name that is a word of Python ends with an underscore there.
        name.rstrip("_"): column
        for name, hint in get_type_hints(row, include_extras=True).items()
        for column in getattr(hint, "__metadata__", ())
        if isinstance(column, Column)
    }
    return {"run_id": RUN_ID} | annotated
