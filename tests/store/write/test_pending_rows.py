"""Rows that wait are kept in their order, whatever is merged."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from audit.store.write.pending_rows import FLUSH_ROWS, PendingRows


@given(sizes=st.lists(st.integers(0, 40), max_size=200))
def test_rows_stay_in_their_order(sizes: list[int]) -> None:
    pending, expected = PendingRows(), []
    for number, size in enumerate(sizes):
        rows = [f"{number}.{n}" for n in range(size)]
        pending.add({"samples": pa.table({"source": pa.array(rows, pa.string())})})
        expected += rows
    found = dict(pending.tables())
    assert bool(pending) == bool(expected)
    assert (found["samples"]["source"].to_pylist() if expected else []) == expected
    pending.clear()
    assert dict(pending.tables()) == {}


def test_small_tables_are_merged_and_large_ones_are_not_copied() -> None:
    pending = PendingRows()
    for number in range(1000):
        pending.add({"samples": pa.table({"index": [number]})})
    assert dict(pending.tables())["samples"]["index"].num_chunks < 100
    large = pa.table({"data": pa.array([b"x" * (9 << 20)])})
    address = large["data"].chunk(0).buffers()[2].address
    pending.add({"payloads": large})
    assert dict(pending.tables())["payloads"]["data"].chunk(0).buffers()[2].address == address


def test_enough_rows_are_to_be_written() -> None:
    pending = PendingRows()
    pending.add({"samples": pa.table({"index": range(FLUSH_ROWS - 1)})})
    assert not pending.is_enough
    pending.add({"samples": pa.table({"index": [0]})})
    assert pending.is_enough
