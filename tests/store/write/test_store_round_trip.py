"""Whatever rows go in come out again: through audit, plain DuckDB, pyarrow and pandas."""

from __future__ import annotations

import math
import os
import struct
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_cases import record, rows_of, visit_tables

import audit
from audit.store import wire as batch
from audit.store.schema import SCHEMAS
from audit.store.write.writer import RunWriter
from audit.tables import TABLES

_RELAXED = settings(
    max_examples=examples(3),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def same(a: Any, b: Any) -> bool:
    """Equal, where NaN equals NaN and a list is a list."""
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b)) or a == b
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def key(row: dict[str, Any]) -> str:
    return repr(sorted((name, repr(value)) for name, value in row.items()))


def same_rows(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """The same rows in any order (a part is kept in order of index)."""
    found, expected = sorted(found, key=key), sorted(expected, key=key)
    return len(found) == len(expected) and all(
        a.keys() == b.keys() and all(same(a[n], b[n]) for n in a) for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("table", SCHEMAS)
@given(data=st.data())
@_RELAXED
def test_any_rows_come_out_as_they_went_in(
    table: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("store")
    rows = data.draw(rows_of(table))
    writer = RunWriter.create(str(place))
    run_id = writer.run.run_id
    rows = [{"run_id": run_id, **row} for row in rows]
    # Floats go in as the column keeps them.
    expected = pa.Table.from_pylist(rows, schema=SCHEMAS[table]).to_pylist()
    writer.append({table: batch.table_of(table, {n: [row[n] for row in rows] for n in SCHEMAS[table].names})})
    writer.finish("complete")

    with audit.open(place) as store:
        assert same_rows(store.sql(f'FROM "{table}"').dicts(), expected)
        assert same_rows(store.sql(f'FROM "{table}"', run="latest").arrow().to_pylist(), expected)
        found: list[Any] = store.reader.rows(TABLES[table], run_id)
        typed = [
            {"run_id": run_id, **asdict(row)}
            if is_dataclass(row)
            else {name.removesuffix("_"): value for name, value in row.items()}  # `class` is a word of Python
            for row in found
        ]
        assert same_rows(typed, expected)
        batches = list(store.sql(f'FROM "{table}"').arrow_batches(2))
        assert all(one.num_rows <= 2 for one in batches)
        assert same_rows([row for one in batches for row in one.to_pylist()], expected)
        assert store.verify() == []
        assert store.sql(f'FROM "{table}"').arrow().schema.names == SCHEMAS[table].names
    [file] = place.glob(f"runs/*/{table}/*.parquet")
    assert same_rows(pq.ParquetFile(file, page_checksum_verification=True).read().to_pylist(), expected)
    plain = duckdb.connect().sql(f"FROM read_parquet('{place}/runs/*/{table}/*.parquet')").to_arrow_table()
    assert same_rows(plain.to_pylist(), expected)
    frame = pd.read_parquet(file, dtype_backend="pyarrow")
    back = pa.Table.from_pandas(frame, schema=SCHEMAS[table], preserve_index=False)
    assert same_rows(back.to_pylist(), expected)


def test_plain_duckdb_and_pandas_read_a_store_with_no_code_of_ours(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    first, second = record(place, samples=20), record(place, samples=10)
    query = f"""
        SELECT run_id, count(*), count(*) FILTER (NOT correct)
        FROM read_parquet('{place}/runs/*/predictions/*.parquet') GROUP BY 1 ORDER BY 1
    """
    assert duckdb.connect().sql(query).fetchall() == sorted([(first.run_id, 20, 4), (second.run_id, 10, 2)])
    files = sorted(place.glob("runs/*/predictions/*.parquet"))
    frame = pd.concat([pd.read_parquet(file) for file in files])
    with audit.open(place) as store:
        ours = store.sql("FROM predictions ORDER BY run_id, index").df()
    theirs = frame.sort_values(["run_id", "index"]).reset_index(drop=True)
    for column in ("run_id", "index", "label", "label_name", "predicted", "correct", "batch", "position"):
        assert ours[column].tolist() == theirs[column].tolist()
    assert (np.stack(ours["logits"]) == np.stack(theirs["logits"])).all()


def test_non_finite_numbers_are_kept_and_never_become_null(tmp_path: Path) -> None:
    writer = RunWriter.create(str(tmp_path / "s"))
    tables = visit_tables(writer.run.run_id, [0])
    strange = [float("nan"), float("inf"), -float("inf"), -0.0, 1e-45]
    column = pa.array([strange], pa.list_(pa.float32()))
    position = SCHEMAS["predictions"].get_field_index("logits")
    tables["predictions"] = tables["predictions"].set_column(position, SCHEMAS["predictions"].field("logits"), column)
    writer.append(tables)
    writer.finish("complete")
    with audit.open(tmp_path / "s") as store:
        [[logits]] = store.sql("SELECT logits FROM predictions").fetchall()
    expected = [float(np.float32(value)) for value in strange]
    assert struct.pack("5d", *logits) == struct.pack("5d", *expected)


@given(
    order=st.permutations(range(40)),
    cuts=st.lists(st.integers(1, 39), max_size=3, unique=True).map(sorted),
)
@_RELAXED
def test_any_order_of_writing_gives_the_same_rows_and_traces(
    order: list[int], cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("order")
    writer = RunWriter.create(str(place))
    for start, end in zip([0, *cuts], [*cuts, 40], strict=True):
        writer.append(visit_tables(writer.run.run_id, order[start:end]))
        writer.flush()
    writer.finish("complete")
    with audit.open(place) as store:
        assert store.sql("SELECT list(index ORDER BY index) FROM lineage").fetchone() == (list(range(40)),)
        for index in order[:3]:
            trace = store.trace(index=index)
            assert trace.sample["index"] == index
            assert [row["stage"] for row in trace.stages] == [0, 1, 2]
            assert trace.stages[2]["digest"] == f"{index:028x}0002"
            assert trace.prediction is not None
            assert trace.prediction["index"] == index
    for file in place.glob("runs/*/*/*.parquet"):
        index = pq.read_table(file, columns=["index"])["index"].to_pylist()
        assert index == sorted(index)


@given(st.data())
@_RELAXED
def test_a_packed_batch_unpacks_to_the_same_rows(data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(sorted(batch.PACKED_SCHEMAS)))
    rows = data.draw(rows_of(table))
    gathered = batch.columns(table)
    for position, row in enumerate(rows):
        gathered.add(**{**row, "position": position, "index": position})
    stamp = batch.BatchStamp(run_id="r", epoch=3, batch=4, visits=list(range(len(rows))), rank=1)
    stamped = stamp.apply(batch.to_tables(batch.unpack_lists(batch.pack({table: gathered}))))
    found = stamped[table].to_pylist()
    assert stamped[table].schema.equals(SCHEMAS[table])
    for position, (row, came) in enumerate(zip(rows, found, strict=True)):
        stamps = {"run_id": "r", "epoch": 3, "visit": position, "index": position, "batch": 4, "position": position}
        stamps |= {"rank": 1} if table == "samples" else {}
        expected = pa.Table.from_pylist([{**row, **stamps}], schema=SCHEMAS[table]).to_pylist()[0]
        assert same_rows([came], [expected])


def test_payloads_beyond_what_offsets_reach_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_LONGEST", 10)
    blobs = [b"four", b"", b"sixsix", b"more than ten bytes", None, b"x"]
    gathered = batch.columns("payloads")
    for position, blob in enumerate(blobs):
        gathered.add(index=position, position=position, stage=0, data=blob)
    column = batch.to_tables(batch.unpack_lists(batch.pack({"payloads": gathered})))["payloads"]["data"]
    assert column.to_pylist() == blobs
    assert [len(piece) for piece in column.chunks] == [3, 1, 2]


_PLACES = [
    b"sq[1]", b"star*", b"what?", b"{a,b}", b"it's", b'say "hi"', b"new\nline", "☃ 🐍".encode(), b"two  spaces ",
    b"not-utf8-\xff\xfe", b"run_id=x", b"a%20b#c", b"--store", b"~", b"$HOME", b"back\\slash",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", _PLACES, ids=[repr(name) for name in _PLACES])
def test_a_store_may_be_called_anything(name: bytes, tmp_path: Path) -> None:
    place = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name)))
    # What a pattern of that name would match instead, were the path ever taken for one.
    for decoy in ("sq1", "star", "starry", "whatX", "a", "b"):
        record(tmp_path / decoy, samples=3, name="decoy")
    run = record(place, samples=15, name="real")
    with audit.open(place) as store:
        assert [row.name for row in store.runs()] == ["real"]
        assert store.sql("SELECT count(*), count(DISTINCT run_id) FROM lineage").fetchone() == (15, 1)
        assert store.trace(index=7).sample["run_id"] == run.run_id
        assert store.verify() == []
        assert store.sql("SELECT count(*) FROM wrong_predictions").fetchone() == (3,)
    again = RunWriter.resume(str(place), run.run_id)
    again.append(visit_tables(run.run_id, [99]))
    again.finish("complete")
    with audit.open(place) as store:
        assert store.sql("SELECT count(*) FROM samples").fetchone() == (16,)
