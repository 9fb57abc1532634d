"""Columns of Arrow arrays: those of the compiled loops are what `pa.array` makes, also where a value is an unusual one."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.records import Columns
from audit.store.arrow_columns import array_of, constant_column
from audit.values import native as loops


class _Number(enum.IntEnum):
    TWO = 2


class _Text(str):
    pass


_WHOLE = st.one_of(st.integers(-(2**63), 2**63 - 1), st.just(_Number.TWO), st.just(np.int64(3)))
_SMALL = st.one_of(st.integers(-(2**31), 2**31 - 1), st.just(np.int32(3)))
_FLOATS = st.one_of(st.floats(allow_nan=False), st.integers(-9, 9), st.just(np.float64(0.5)))
_SINGLE = st.floats(allow_nan=False, width=32)
_TEXTS = st.one_of(st.text(max_size=5), st.builds(_Text, st.text(max_size=3)))
_KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), _WHOLE),
    (pa.int32(), _SMALL),
    (pa.float64(), _FLOATS),
    (pa.float32(), _SINGLE),
    (pa.bool_(), st.booleans()),
    (pa.string(), _TEXTS),
    (pa.binary(), st.binary(max_size=9)),
    (pa.list_(pa.int64()), st.one_of(st.lists(_WHOLE, max_size=3), st.lists(_WHOLE, max_size=4).map(tuple))),
    (pa.list_(pa.string()), st.lists(st.text(max_size=2), max_size=2)),
]


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_a_column_is_what_arrow_makes_of_the_list(data: st.DataObject) -> None:
    kind, values = data.draw(st.sampled_from(_KINDS))
    given_values = data.draw(st.lists(st.one_of(st.none(), values), max_size=20))
    start, step = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 4))
    found = array_of(given_values, kind, start, step)
    found.validate(full=True)
    assert found.equals(pa.array(given_values[start::step], kind))


@pytest.mark.parametrize(
    ("values", "kind"),
    [([2**31], pa.int32()), ([2**63], pa.int64()), (["\ud800"], pa.string()), ([True], pa.int64()), ([1], pa.string())],
)
def test_a_value_that_a_column_cannot_hold_is_treated_as_arrow_does(values: list[Any], kind: pa.DataType) -> None:
    try:
        expected = pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError) as error:
        with pytest.raises(type(error)):
            array_of(values, kind)
    else:
        assert array_of(values, kind).equals(expected)


def test_a_constant_column_holds_its_value_in_every_row() -> None:
    assert constant_column("run", pa.string(), 3).to_pylist() == ["run"] * 3
    assert constant_column(None, pa.int32(), 2).to_pylist() == [None] * 2


@pytest.mark.skipif(not hasattr(loops.native, "column"), reason="the compiled loops are not there")
def test_the_compiled_loops_are_used_for_plain_values() -> None:
    assert loops.native is not None
    assert loops.native.column([1, None, 3], 0, 1, "q") is not None
    assert loops.native.column([1.0], 0, 1, "q") is None


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=12))
def test_a_strided_column_holds_what_was_appended(rows: list[tuple[bool, int]]) -> None:
    """Rows may name different columns; one that is not named is NULL."""
    columns, expected = Columns(("a", "b")), []
    for is_whole, number in rows:
        columns.append(("a", "b"), (number, -number)) if is_whole else columns.append(("a",), (number,))
        expected.append((number, -number if is_whole else None))
    for place, name in enumerate(("a", "b")):
        found = columns.read_strided_values(name)
        values = [None] * len(rows) if found is None else found[0][found[1] :: found[2]]
        assert values == [row[place] for row in expected]


@pytest.mark.parametrize("row", [(1,), (1, 2, 3)])
def test_a_row_with_too_few_or_too_many_values_is_refused(row: tuple[int, ...]) -> None:
    columns = Columns(("a", "b"))
    columns.append(("a", "b"), row)
    with pytest.raises(ValueError, match="a, b"):
        columns.read_strided_values("a")
