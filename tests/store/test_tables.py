"""The row classes are the only definition of tables: schema, docs and Python types follow from them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pyarrow.parquet as pq
import pytest
from places import REPOSITORY

from audit.columns import VARCHAR, Column, columns_of
from audit.records import Run
from audit.store import wire
from audit.store.schema import RUNS, SCHEMAS, arrow_schema, schema_at
from audit.tables import TABLES, PredictionRow, StageOutputRow
from audit.values.base import Facts

#: Columns and Arrow types of schema version 3. They are never removed, renamed, reordered or given another type.
VERSION_3 = json.loads((Path(__file__).parent / "schema_v3.json").read_text())
_PYTHON = {
    "VARCHAR": str,
    "INTEGER": int,
    "BIGINT": int,
    "FLOAT": float,
    "DOUBLE": float,
    "BOOLEAN": bool,
    "BLOB": bytes,
    "VARCHAR[]": list[str],
    "BIGINT[]": list[int],
    "FLOAT[]": list[float],
}


@pytest.mark.parametrize("table", VERSION_3)
def test_the_stored_columns_stay_what_they_were(table: str) -> None:
    schema = RUNS if table == "runs" else schema_at(table, 3)
    found = [(field.name, str(field.type)) for field in schema]
    assert found[: len(VERSION_3[table])] == list(VERSION_3[table].items())
    assert table == "runs" or len(found) == len(VERSION_3[table])


def test_parts_of_the_first_version_have_the_columns_of_version_1() -> None:
    parts = sorted((Path(__file__).parent / "format_v1" / "lineage").glob("runs/*/*/*.parquet"))
    assert len(parts) > 10
    for part in parts:
        table = part.parent.name
        assert pq.read_schema(part).names == schema_at(table, 1).names, table


@pytest.mark.parametrize("table", TABLES)
def test_the_python_types_are_those_of_the_columns(table: str) -> None:
    hints = get_type_hints(TABLES[table], include_extras=True)
    named = [name.rstrip("_") for name in hints]
    assert named in (list(columns_of(TABLES[table])), list(columns_of(TABLES[table]))[1:])
    for name, hint in hints.items():
        python, column = get_args(hint)
        optional = get_origin(python) is UnionType and NoneType in get_args(python)
        plain = next(kind for kind in get_args(python) if kind is not NoneType) if optional else python
        assert plain == _PYTHON[column.sql_type], f"{table}.{name}"
        assert optional == (column.null is not None), f"{table}.{name} is NULL where the type says it is not"
        assert column.meaning, f"{table}.{name} has no description"


def test_every_column_of_runs_is_a_field_of_a_run() -> None:
    assert list(columns_of(Run)) == RUNS.names
    assert all(column.meaning for column in columns_of(Run).values())


def test_every_fact_of_a_value_is_a_column_of_the_same_name() -> None:
    assert set(Facts._fields) <= set(columns_of(StageOutputRow))


def test_a_column_that_no_recorder_fills_is_null() -> None:
    outputs = wire.columns("stage_outputs")
    outputs.append(("index", "stage", "position"), (3, 3, 3))
    [table] = wire.to_tables(wire.unpack_lists(wire.pack({"stage_outputs": outputs}))).values()
    [row] = table.to_pylist()
    assert {name for name, value in row.items() if value is not None} == {"index", "stage", "position"}
    [same] = wire.to_tables({"stage_outputs": outputs}).values()
    assert same.equals(table)


def test_rows_that_stay_in_the_process_are_those_that_travel() -> None:
    payloads = wire.columns("payloads")
    blobs = [b"small", None, b"", bytes(20_000), bytes(16_384), b"small too"]
    for number, data in enumerate(blobs):
        names = ("index", "position", "stage", "form", "kind", "encoding", "data")
        payloads.append(names, (number, number, 0, "full", "other", "raw", data))
    payloads.add(index=9, position=6, data=b"named")
    tables: Any = wire.to_tables({"payloads": payloads, "rng": wire.columns("rng")})
    assert [*tables] == ["payloads"]
    assert tables["payloads"].equals(wire.to_tables(wire.unpack_lists(wire.pack({"payloads": payloads})))["payloads"])
    assert tables["payloads"]["data"].to_pylist() == [*blobs, b"named"]


def test_a_new_column_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class WiderRow(PredictionRow):
        """As predictions, with one more column."""

        later: Annotated[str | None, VARCHAR("added later", null="not known", since=4)]

    # Its annotations are evaluated in this module.
    monkeypatch.setattr(sys.modules[__name__], "WiderRow", WiderRow, raising=False)
    monkeypatch.syspath_prepend(str(REPOSITORY / "docs"))
    import make_format

    schema: Any = arrow_schema(WiderRow)
    assert [str(field.type) for field in schema if field.name not in SCHEMAS["predictions"].names] == ["string"]
    assert columns_of(WiderRow)["later"] == Column("VARCHAR", "added later", "not known", 4)
    assert "| later | VARCHAR | added later | not known |\n" in make_format.section("wider", WiderRow)
