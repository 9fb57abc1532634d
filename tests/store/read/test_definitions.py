"""Tables, views and macros are made when a query first names them, however it writes the name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.errors import QueryError
from audit.records import Stage
from audit.store.read.reader import Reader
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A store with one run of two samples."""
    writer = RunWriter.create(str(tmp_path))
    rows = {"run_id": [writer.run.run_id] * 2, "epoch": [0, 0], "index": [0, 1], "visit": [0, 0], "status": ["ok"] * 2}
    writer.append({"samples": table_of("samples", rows)})
    writer.finish("complete")
    with Reader(str(tmp_path)) as opened:
        yield opened


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) FROM samples",
        'SELECT count(*) FROM "SAMPLES"',
        "SELECT count(*) FROM main.samples",
        "SELECT count(*) FROM query_table('sam' || 'ples')",
        "SELECT count(*) FROM lineage",
        "SELECT count(*) FROM latest",
    ],
)
def test_a_name_is_found_however_it_is_written(reader: Reader, query: str) -> None:
    assert reader.sql(query).fetchall() == [(2,)]
    assert reader.sql(query).arrow().to_pydict().popitem()[1] == [2]


def test_everything_is_listed_after_a_query_that_needed_little(reader: Reader) -> None:
    reader.sql("FROM samples").fetchall()
    listed = {name for (name,) in reader.sql("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()}
    assert {"samples", "predictions", "lineage", "forgetting", "runs"} <= listed
    assert {"samples", "forgetting"} <= {row[0] for row in reader.sql("SHOW TABLES").fetchall()}


@pytest.mark.parametrize(("typed", "meant"), [("forgeting", "forgetting"), ("sampels", "samples")])
def test_a_mistyped_name_is_answered_with_the_right_one(reader: Reader, typed: str, meant: str) -> None:
    with pytest.raises(QueryError, match=meant):
        reader.sql(f"FROM {typed}").fetchall()


def test_a_name_that_begins_like_a_command_lists_nothing(reader: Reader) -> None:
    session = reader.session(None, "WITH shown AS (FROM runs) SELECT count(*) FROM shown")
    assert session.connection.cursor().execute(
        "SELECT view_name FROM duckdb_views() WHERE NOT internal"
    ).fetchall() == [("runs",)]


def test_a_table_is_defined_without_those_that_its_columns_are_called_like(reader: Reader) -> None:
    session = reader.session(None, "SELECT count(*) FROM runs")  # it has columns `samples` and `tags`
    made = "SELECT view_name FROM duckdb_views() WHERE NOT internal"
    assert session.connection.cursor().execute(made).fetchall() == [("runs",)]


def test_a_part_can_be_named_before_its_table(reader: Reader) -> None:
    run_id = reader.run().run_id
    assert reader.sql(f"SELECT count(*) FROM 'audit://samples/run_id={run_id}/0.parquet'").fetchall() == [(2,)]


def test_stages_are_read_once_until_the_store_is_looked_at_again(tmp_path: Path) -> None:
    writer = RunWriter.create(str(tmp_path))

    def append(*stages: int) -> None:
        paths = [f"transform[{stage}]" for stage in stages]
        rows = {"run_id": [writer.run.run_id] * len(stages), "stage": [*stages], "path": paths, "name": paths}
        writer.append({"stages": table_of("stages", rows)})
        writer.flush()

    append(1, 0)
    with Reader(str(tmp_path)) as opened:
        first = opened.stages(writer.run.run_id)
        assert [stage.stage for stage in first] == [0, 1]
        assert first == tuple(opened.rows(Stage, writer.run.run_id, order="stage"))
        append(2)
        read = opened.bytes_read()
        assert opened.stages(writer.run.run_id) == first
        assert opened.bytes_read() == read
        opened.refresh()
        assert [stage.stage for stage in opened.stages(writer.run.run_id)] == [0, 1, 2]
    writer.finish("complete")
