"""Rows that a worker sends are those that it gathered: as pickled lists, or as Arrow streams where lists cannot carry them."""

from __future__ import annotations

from typing import Any

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.records import Columns
from audit.store import wire
from audit.store.stamped_rows import StampedRows, tables_of


class _Name(str):
    """A name of a class of the user's own."""


_texts = st.one_of(st.none(), st.text(max_size=5), st.builds(_Name, st.text(max_size=5)))
_numbers = st.one_of(st.none(), st.floats(width=64), st.just(0.5))
_blobs = st.one_of(st.none(), st.binary(max_size=40))
_batch = st.lists(st.tuples(_texts, _numbers, st.one_of(st.none(), _blobs.map(lambda blob: (blob,)))), max_size=5)


def _gather(rows: list[tuple[Any, ...]]) -> dict[str, Columns]:
    tables = {name: wire.columns(name) for name in ("samples", "stage_outputs", "payloads", "rng")}
    for place, (text, number, blob) in enumerate(rows):
        tables["samples"].append(("index", "position", "source"), (place, place, text))
        if place % 2:
            tables["stage_outputs"].add(index=place, position=place, mean=number, name=text)
        else:
            tables["stage_outputs"].append(("index", "position", "mean"), (place, place, number))
        if blob is not None:
            tables["payloads"].add(index=place, position=place, data=blob[0])
    return tables


def _show(tables: dict[str, Any]) -> dict[str, str]:
    return {name: repr(table.to_pylist()) for name, table in tables.items()}


@given(_batch)
@settings(max_examples=examples(100))
def test_a_batch_is_unpacked_as_it_was_gathered(rows: list[tuple[Any, ...]]) -> None:
    assert _show(wire.unpack(wire.pack(_gather(rows)))) == _show(wire.to_tables(_gather(rows)))


@given(st.lists(st.tuples(_batch, st.booleans()), min_size=1, max_size=4))
@settings(max_examples=examples(100))
def test_batches_that_travelled_become_the_same_tables(batches: list[tuple[list[tuple[Any, ...]], bool]]) -> None:
    stamps = [
        wire.BatchStamp("r", 0, number, visits=[*range(len(rows))], split="train")
        for number, (rows, _) in enumerate(batches)
    ]
    stayed = [StampedRows(stamp, _gather(rows)) for stamp, (rows, _) in zip(stamps, batches, strict=True)]
    travelled = [
        StampedRows(stamp, None, wire.pack(_gather(rows))) if is_packed else StampedRows(stamp, _gather(rows))
        for stamp, (rows, is_packed) in zip(stamps, batches, strict=True)
    ]
    assert _show(tables_of(travelled)) == _show(tables_of(stayed))


@pytest.mark.parametrize(
    ("row", "is_list"),
    [(("a", 1.0, None), True), ((_Name("a"), 1.0, None), False), (("a", 1.0, (b"blob",)), False)],
    ids=["plain", "class of the user's own", "payload"],
)
def test_only_plain_rows_without_payloads_are_pickled(row: tuple[Any, ...], is_list: bool) -> None:
    found = wire.unpack_lists(wire.pack(_gather([row])))
    assert (found is not None) == is_list
