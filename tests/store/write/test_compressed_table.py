"""Rows that wait compressed are written as the part that they would be otherwise."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.store import part_file
from audit.store.compressed_table import CompressedRows, CompressedTable
from audit.store.part_file import part_of
from audit.store.wire import table_of

_pieces = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=6)


def _table(rows: pa.Table, pieces: list[tuple[int, bool]]) -> CompressedTable:
    """The rows in pieces of these sizes, compressed or not."""
    made, start = [], 0
    for size, is_compressed in pieces:
        piece = rows.slice(start, size)
        made.append(CompressedRows(piece) if is_compressed else piece)
        start += size
    return CompressedTable(made)


@given(_pieces, st.data())
def test_any_rows_are_taken_in_any_order(pieces: list[tuple[int, bool]], data: st.DataObject) -> None:
    count = sum(size for size, _ in pieces)
    rows = pa.table({"index": range(count), "name": [None if n % 3 else str(n) for n in range(count)]})
    places = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=40))
    found = _table(rows, pieces).take(np.array(places))
    assert found.to_pylist() == rows.take(pa.array(places)).to_pylist()


@pytest.mark.parametrize("order", ["in order", "shuffled", "an index twice", "without some indices"])
@pytest.mark.parametrize("is_first_compressed", [True, False])
def test_the_part_is_the_same(order: str, is_first_compressed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of sorted rows from pieces, byte by byte those of a table that was sorted as a whole."""
    monkeypatch.setattr(part_file, "_ROW_GROUP", 1000)
    chance = np.random.default_rng(0)
    index: list[int | None] = [*range(5000)]
    if order != "in order":
        index = chance.permutation(5000).tolist()
    if order == "an index twice":
        index = [number and number // 2 for number in index]
    elif order == "without some indices":
        index[7] = None
    columns = {"run_id": ["r"] * 5000, "index": index, "logits": chance.random((5000, 10), np.float32)}
    rows = table_of("predictions", columns)
    pieces = [(1500, is_first_compressed), (700, True), (64, False), (2000, True), (736, False)]
    part, data = part_of("predictions", _table(rows, pieces), 0)
    expected, wanted = part_of("predictions", rows, 0)
    assert part == expected
    assert bytes(data) == bytes(wanted)


def test_columns_that_are_missing_are_added() -> None:
    rows = pa.table({"run_id": ["r"] * 3, "index": [2, 0, 1]})
    part, data = part_of("samples", _table(rows, [(3, True)]), 0)
    assert (part, bytes(data)) == (lambda found: (found[0], bytes(found[1])))(part_of("samples", rows, 0))
