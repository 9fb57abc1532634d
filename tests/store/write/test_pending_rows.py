"""Rows that wait are kept in their order, whatever is merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from audit.store import wire
from audit.store.compressed_table import CompressedTable
from audit.store.stamped_rows import ColumnRows, StampedRows
from audit.store.write.pending_rows import FLUSH_ROWS, PendingRows


def _tables(pending: PendingRows) -> dict[str, pa.Table]:
    """All rows that wait, by table."""
    return {name: _table(pending, name) for name in pending.names()}


def _table(pending: PendingRows, name: str) -> pa.Table:
    table = pending.table(name)
    return (table.select(table.column_names) if isinstance(table, CompressedTable) else table).combine_chunks()


@given(sizes=st.lists(st.integers(0, 40), max_size=200))
def test_rows_stay_in_their_order(sizes: list[int]) -> None:
    pending, expected = PendingRows(), []
    for number, size in enumerate(sizes):
        rows = [f"{number}.{n}" for n in range(size)]
        pending.add({"samples": pa.table({"source": pa.array(rows, pa.string())})})
        expected += rows
    found = _tables(pending)
    assert bool(pending) == bool(expected)
    assert (found["samples"]["source"].to_pylist() if expected else []) == expected
    pending.clear()
    assert _tables(pending) == {}


def test_small_tables_are_compressed_and_large_payloads_are_not_copied() -> None:
    pending = PendingRows()
    for number in range(1000):
        pending.add({"samples": pa.table({"index": [number]})})
    assert isinstance(pending.table("samples"), CompressedTable)
    assert _table(pending, "samples")["index"].to_pylist() == [*range(1000)]
    large = pa.table({"data": pa.array([b"x" * (9 << 20)])})
    address = large["data"].chunk(0).buffers()[2].address
    for _ in range(2):
        pending.add({"payloads": large})
    chunks = pending.table("payloads")["data"].chunks
    assert [chunk.buffers()[2].address for chunk in chunks] == [address, address]


def test_many_small_payloads_are_merged() -> None:
    pending = PendingRows()
    for number in range(1000):
        pending.add({"payloads": pa.table({"index": [number], "data": [b"x"]})})
    found = pending.table("payloads")
    assert isinstance(found, pa.Table)
    assert found["index"].num_chunks < 100
    assert found["index"].to_pylist() == [*range(1000)]


def test_waiting_rows_take_a_fraction_of_their_memory() -> None:
    """Also where they come as many small tables, of which each column would take several times its values."""
    pending, before, size = PendingRows(), pa.total_allocated_bytes(), 0
    for number in range(200):
        logits = np.full((64, 10), number, np.float32)
        index = [*range(64 * number, 64 * number + 64)]
        made = ColumnRows("predictions", {"run_id": ["a run"] * 64, "index": index, "logits": logits}).table()
        size += made.get_total_buffer_size()
        pending.add({"predictions": made})
        del made
    assert pa.total_allocated_bytes() - before < size / 2


def test_columns_are_read_without_the_others() -> None:
    pending = PendingRows()
    for number in range(100):
        pending.add({"samples": pa.table({"index": [number], "status": ["ok"], "source": ["a"]})})
        pending.add({"stages": pa.table({"stage": [number]})})
    found = pending.select({"samples": ("status", "index", "label"), "predictions": ("index",)})
    assert found["samples"].column_names == ["status", "index"]
    assert found["samples"]["index"].to_pylist() == [*range(100)]
    assert found.keys() == {"samples"}


def test_enough_rows_are_to_be_written() -> None:
    pending = PendingRows()
    pending.add({"samples": pa.table({"index": range(FLUSH_ROWS - 1)})})
    assert not pending.is_enough
    pending.add({"samples": pa.table({"index": [0]})})
    assert pending.is_enough


@given(batches=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.booleans()), max_size=12))
def test_predictions_of_many_batches_become_one_table(batches: list[tuple[int, int, bool]]) -> None:
    """In their order, also where outputs have another width, or some come as a table."""
    pending = PendingRows()
    expected: list[tuple[Any, ...]] = []
    for number, (count, width, is_table) in enumerate(batches):
        logits = np.full((count, width), number, np.float32)
        index, labels = [number] * count, [None if number % 2 else n for n in range(count)]
        rows = ColumnRows("predictions", {"index": index, "label": labels, "logits": logits})
        pending.add({"predictions": rows.table() if is_table else rows}, _batch(number, count))
        expected += zip(index, labels, logits.tolist(), strict=True)
    made = _tables(pending).get("predictions")
    columns = [] if made is None else [made[name].to_pylist() for name in ("index", "label", "logits")]
    assert list(zip(*columns, strict=True)) == expected


def _batch(
    number: int, count: int, *, is_packed: bool = False, is_odd: bool = False, is_stream: bool = False, **stamp: Any
) -> StampedRows:
    """Rows of one batch: gathered in this process, or packed by a worker."""
    tables = {name: wire.columns(name) for name in ("samples", "stage_outputs", "rng")}
    for place in range(count):
        label: Any = 2**70 if is_odd else place
        tables["samples"].append(("index", "position", "source", "label"), (number, place, f"{number}.png", label))
        for stage in range(2):
            tables["stage_outputs"].append(("index", "position", "stage", "mean"), (number, place, stage, 0.5))
    if number % 3 == 0:
        tables["rng"].add(index=number, position=0, generator="torch", state=b"\0")
    indices = [*range(40, 40 + count)] if is_stream else None
    known = wire.BatchStamp("r", stamp.pop("epoch", 0), number, visits=[*range(count)], indices=indices, **stamp)
    return StampedRows(known, None, wire.pack(tables)) if is_packed else StampedRows(known, tables)


_batches = st.lists(
    st.builds(
        _batch,
        st.integers(0, 9),
        st.integers(1, 4),
        is_packed=st.booleans(),
        epoch=st.integers(0, 2),
        split=st.sampled_from([None, "train"]),
        rank=st.sampled_from([None, 1]),
        stages=st.sampled_from([None, {1: 7}]),
        is_stream=st.booleans(),
    ),
    max_size=8,
)


@given(_batches)
def test_rows_of_several_batches_are_those_of_each(batches: list[StampedRows]) -> None:
    pending, expected = PendingRows(), PendingRows()
    for batch in batches:
        beside = {"predictions": pa.table({"batch": [batch.stamp.batch]})}
        pending.add(beside, batch, 100)
        expected.add({**batch.stamp.apply(batch.unstamped_tables()), **beside})
    found = _tables(pending)
    assert found == _tables(expected)


def test_a_value_that_fits_into_no_column_costs_its_batch_alone() -> None:
    pending = PendingRows()
    for number in range(3):
        beside = {"predictions": pa.table({"batch": [number]})}
        pending.add(beside, _batch(number, 2, is_odd=number == 1))
    found = _tables(pending)
    assert found["samples"]["batch"].to_pylist() == [0, 0, 2, 2]
    assert found["predictions"]["batch"].to_pylist() == [0, 2]
    [loss] = pending.losses
    assert loss.startswith("the rows of batch 1 of epoch 0 were lost: OverflowError")


def test_tables_of_the_names_of_batches_come_behind_them() -> None:
    pending = PendingRows()
    pending.add({}, _batch(0, 1))
    pending.add(_batch(1, 1).tables())
    pending.add({}, _batch(2, 1))
    assert _tables(pending)["samples"]["batch"].to_pylist() == [0, 1, 2]
