"""The Arrow schema of every table, made from the row classes (audit/tables.py, and `Run` in audit/records.py)."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from audit.columns import columns_of
from audit.records import Run
from audit.tables import TABLES

#: Raised only when a reader of an older version could misread a newer store.
FORMAT_VERSION = 2
FORMAT_NAME = "audit-lineage"

#: What each SQL type of a column is in Arrow.
_ARROW: dict[str, pa.DataType] = {
    "VARCHAR": pa.string(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "BLOB": pa.binary(),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", tz="UTC"),
    "MAP(VARCHAR, VARCHAR)": pa.map_(pa.string(), pa.string()),
}


def arrow_type(sql_type: str) -> pa.DataType:
    """Return the Arrow type of a column's SQL type."""
    if sql_type.endswith("[]"):
        return pa.list_(arrow_type(sql_type[:-2]))
    return _ARROW[sql_type]


def arrow_schema(row: type) -> pa.Schema:
    """Return the Arrow schema of the columns that a row class annotates."""
    return pa.schema([pa.field(name, arrow_type(column.sql_type)) for name, column in columns_of(row).items()])


SCHEMAS: dict[str, pa.Schema] = {table: arrow_schema(row) for table, row in TABLES.items()}

#: Columns that were added after version 1: table, column, and the version that added it.
ADDED_COLUMNS: dict[str, dict[str, int]] = {
    table: added
    for table, row in TABLES.items()
    if (added := {name: column.since for name, column in columns_of(row).items() if column.since > 1})
}
#: Version of the columns. Each part says which version it was written with.
SCHEMA_VERSION = max(since for added in ADDED_COLUMNS.values() for since in added.values())

#: The `runs` table is made from the manifests, not from parts.
RUNS = arrow_schema(Run)


def schema_at(table: str, version: int) -> pa.Schema:
    """Return the columns that a table had at a version of the schema."""
    added = ADDED_COLUMNS.get(table, {})
    return pa.schema([field for field in SCHEMAS[table] if added.get(field.name, 1) <= version])


@cache
def is_older(table: str, version: int) -> bool:
    """Tell whether parts of this version lack columns that the table has now."""
    return any(since > version for since in ADDED_COLUMNS.get(table, {}).values())


def add_missing_columns(name: str, rows: pa.Table) -> pa.Table:
    """Return the rows with every column that the table has now; those that are missing are NULL."""
    present = set(rows.column_names)
    for number, field in enumerate(SCHEMAS[name]):
        if field.name not in present:
            rows = rows.add_column(min(number, rows.num_columns), field, pa.nulls(rows.num_rows, field.type))
    return rows
