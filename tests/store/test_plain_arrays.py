"""Arrays that are made without `pa.array` are those that it makes, and no pandas is loaded for a first answer."""

import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_cases import stage_table, visit_tables

from audit.records import Run
from audit.store.plain_arrays import array_of, numbers_of
from audit.store.schema import RUNS
from audit.store.write.writer import RunWriter

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.one_of(st.none(), st.timezones()))
_VALUES: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): _TEXT,
    pa.timestamp("us", tz="UTC"): _TIMES,
    pa.list_(pa.string()): st.lists(st.none() | _TEXT, max_size=3),
    pa.map_(pa.string(), pa.string()): st.lists(st.tuples(_TEXT, st.none() | _TEXT), max_size=3),
}


def test_every_type_of_the_runs_table_is_tried() -> None:
    assert set(RUNS.types) <= set(_VALUES)


@pytest.mark.parametrize("kind", _VALUES, ids=str)
@given(data=st.data())
def test_arrays_are_those_of_arrow(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | _VALUES[kind], max_size=12))
    made = array_of(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))


@pytest.mark.parametrize("kind", [pa.uint64(), pa.int32(), pa.float32()], ids=str)
def test_numbers_of_all_chunks_come_back_in_order(kind: pa.DataType) -> None:
    column = pa.chunked_array([pa.array([1, 2, 3], kind).slice(1), pa.array([], kind), pa.array([4], kind)])
    numbers = numbers_of(column)
    assert numbers.tolist() == [2, 3, 4]
    assert numbers.dtype == column.to_numpy().dtype
    assert numbers_of(column.slice(0, 0)).dtype == numbers.dtype


@pytest.mark.workers
def test_a_first_answer_loads_no_pandas(tmp_path: Path) -> None:
    writer = RunWriter.create(str(tmp_path / "lineage"), Run("", name="a", tags={"b": "c"}, classes=["d"]))
    writer.append({"stages": stage_table(writer.run.run_id)})
    for indices in ([0, 4], [1, 5]):  # which part holds a sample is found by reading them
        writer.append(visit_tables(writer.run.run_id, indices))
        writer.flush()
    writer.finish("complete")
    asked = "import sys, audit; s = audit.open(sys.argv[1]); s.sql('SELECT name, tags FROM runs').fetchall(); s.trace(index=1); "
    code = f"{asked} print('pandas' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "lineage")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
