"""Rows that a worker sends are those that it gathered."""

from __future__ import annotations

import pickle
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.records import Columns
from audit.store import wire
from audit.store.stamped_rows import StampedRows, tables_of


class _Name(str):
    """A name of a class of the user's own."""


class _Number(IntEnum):
    TWO = 2


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
    packed = wire.pack(_gather(rows))
    assert _show(wire.to_tables(wire.unpack_lists(packed))) == _show(wire.to_tables(_gather(rows)))
    assert wire.count_rows(packed) == sum(table.rows for table in _gather(rows).values())


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
    ("column", "value", "expected"),
    [
        ("source", _Name("a"), "a"),
        ("source", np.str_("a"), "a"),
        ("label", _Number.TWO, 2),
        ("label", np.int16(2), 2),
        ("source_bytes", True, True),
    ],
    ids=repr,
)
def test_values_of_subclasses_travel_as_what_they_are_of(column: str, value: Any, expected: Any) -> None:
    rows = wire.columns("samples")
    rows.add(**{"index": 0, "position": 0, column: value})
    [found] = wire.unpack_lists(wire.pack({"samples": rows}))["samples"].data[column]
    assert found == expected
    assert type(found) is type(expected)


def test_shapes_travel_as_tuples() -> None:
    rows = wire.columns("stage_outputs")
    for shape in (torch.Size([3, 4]), np.array([3, 4]), (3, 4)):
        rows.add(index=0, position=0, shape=shape)
    packed = wire.pack({"stage_outputs": rows})
    assert wire.unpack_lists(packed)["stage_outputs"].data["shape"] == [(3, 4), [3, 4], (3, 4)]
    assert wire.to_tables(wire.unpack_lists(packed))["stage_outputs"]["shape"].to_pylist() == [[3, 4]] * 3


class _Trap(str):
    """A text that would run code in the process that receives it."""

    def __reduce_ex__(self, _: Any) -> Any:
        return exec, ("raise RuntimeError('code ran')",)


def test_no_code_of_a_value_runs_where_it_arrives() -> None:
    rows = wire.columns("samples")
    rows.add(index=0, position=0, source=_Trap("a"))
    assert wire.unpack_lists(wire.pack({"samples": rows}))["samples"].data["source"] == ["a"]
    rows.add(index=1, position=1, source=_Number)
    with pytest.raises(pickle.PicklingError, match="a value of the class EnumType"):
        wire.pack({"samples": rows})


def test_large_payloads_stay_where_they_arrived() -> None:
    rows = wire.columns("payloads")
    for place, blob in enumerate([b"small", None, bytes(20_000), b""]):
        rows.add(index=place, position=place, data=blob)
    packed = wire.pack({"payloads": rows})
    small, nothing, large, empty = wire.unpack_lists(packed)["payloads"].data["data"]
    assert (small, nothing, empty) == (b"small", None, b"")
    packed[-1] = 7
    assert bytes(large) == bytes(19_999) + b"\7"
