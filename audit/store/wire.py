"""Rows of one batch as one buffer, in which they cross a process boundary.

A worker gathers rows in `Columns`, and packs their values into one block of bytes: pickled lists, and the payloads behind them, which
are not copied again. To make Arrow tables of one batch's few rows would take the worker several times as long; the main process
makes them of many batches at once. What only the main process knows (run, epoch, batch number, how often an index was
drawn) is stamped on there.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from audit.records import Columns
from audit.store.arrow_columns import array_of, constant_column, null_column
from audit.store.schema import SCHEMAS

_STAMPED_COLUMNS = {"run_id", "epoch", "visit", "batch"}
#: Packed rows begin with how many they are.
_HEADER = struct.Struct("<Q")
#: The table with payloads, and the column that they are in.
_PAYLOADS = "payloads"
_BLOBS = "data"
#: A payload of at least so many bytes is not copied where it need not be.
_LARGE_BLOB = 16_384
_LONGEST = np.iinfo(np.int32).max


def _packed_schema(table: str) -> pa.Schema:
    fields = [field for field in SCHEMAS[table] if field.name not in _STAMPED_COLUMNS]
    if table != "samples" and "index" in SCHEMAS[table].names and "position" not in SCHEMAS[table].names:
        # The place in the batch is how a row finds its visit number again.
        fields.append(pa.field("position", pa.int32()))
    return pa.schema(fields)


PACKED_SCHEMAS = {
    table: _packed_schema(table) for table in ("samples", "sample_sources", "stage_outputs", "payloads", "rng")
}
_NAMES = {table: tuple(schema.names) for table, schema in PACKED_SCHEMAS.items()}


def prepare() -> None:
    """Let Arrow load now what it looks for before it converts its first list: pandas, where that is installed.

    That takes most of a second. Otherwise the writer's thread would load it while the user's loop runs.
    """
    pa.array([0])


def columns(table: str) -> Columns:
    """Return an empty gatherer for one of the tables that a worker fills."""
    return Columns(_NAMES[table])


def pack(tables: Mapping[str, Columns], allocate: Callable[[int], Any] = bytearray) -> Any:
    """Return the rows as bytes in memory that `allocate` gives."""
    payloads = tables.get(_PAYLOADS)
    blobs = payloads.data[_BLOBS] if payloads is not None and payloads.rows else []
    lists = _pickle(tables, [None if blob is None else len(blob) for blob in blobs])
    packed = allocate(_HEADER.size + len(lists) + sum(map(len, filter(None, blobs))))
    view, at = memoryview(packed), _HEADER.size + len(lists)
    _HEADER.pack_into(view, 0, sum(rows.rows for rows in tables.values()))
    view[_HEADER.size : at] = lists
    for blob in filter(None, blobs):
        view[at : at + len(blob)] = blob
        at += len(blob)
    return packed


def _pickle(tables: Mapping[str, Columns], lengths: list[int | None]) -> bytes:
    """Return the rows without the payloads, of which these are the lengths."""
    states = {name: rows.state for name, rows in tables.items()}
    if lengths:
        names, columns, *rest = states[_PAYLOADS]
        states[_PAYLOADS] = names, {**columns, _BLOBS: lengths}, *rest
    packed = io.BytesIO()
    _PlainPickler(packed, pickle.HIGHEST_PROTOCOL).dump(states)
    return packed.getvalue()


#: What rows consist of, and what makes a value of each from one of a subclass, whatever that says of itself.
_PLAIN_TYPES: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes.__bytes__,
    tuple: tuple,
    list: list,
}


class _PlainPickler(pickle.Pickler):
    """Pickles values of subclasses as those of Python's own classes: another process may not have the subclass."""

    def reducer_override(self, value: Any) -> Any:
        if value is bool or (isinstance(value, type) and value in _PLAIN_TYPES):
            return NotImplemented
        if isinstance(value, (np.generic, np.ndarray)):
            plain = value.tolist()
        else:
            plain = next((make(value) for kind, make in _PLAIN_TYPES.items() if isinstance(value, kind)), None)
        if type(plain) is not bool and type(plain) not in _PLAIN_TYPES:
            raise pickle.PicklingError(f"a row has a value of the class {type(value).__qualname__}")
        return type(plain), (plain,)


def count_rows(packed: Any) -> int:
    """Return how many rows there are, without unpacking them."""
    return int(_HEADER.unpack_from(packed)[0]) if len(packed) else 0


def unpack_lists(packed: Any) -> dict[str, Columns]:
    """Return the rows as they were gathered. Large payloads stay in the memory of `packed`."""
    view = memoryview(packed)[_HEADER.size :]
    if not view:
        return {}
    tables = {name: Columns.from_state(state) for name, state in pickle.loads(view).items()}
    payloads = tables.get(_PAYLOADS)
    if payloads is not None and payloads.rows:
        payloads.data[_BLOBS] = _cut(view, payloads.data[_BLOBS])
    return tables


def _cut(view: memoryview, lengths: Sequence[int | None]) -> list[Any]:
    """Return the payloads at the end of packed rows."""
    at, found = len(view) - sum(filter(None, lengths)), []
    for length in lengths:
        part = None if length is None else view[at : at + length]
        at += length or 0
        found.append(bytes(part) if part is not None and len(part) < _LARGE_BLOB else part)
    return found


def to_tables(tables: Mapping[str, Columns]) -> dict[str, pa.Table]:
    """Return gathered rows as Arrow tables, which may borrow the memory of large payloads."""
    found = {}
    for name, rows in tables.items():
        if rows.rows:
            fields = PACKED_SCHEMAS[name]
            arrays = [
                _column(rows, field) if field.name != _BLOBS else _borrow_blobs(rows.data[_BLOBS]) for field in fields
            ]
            found[name] = pa.Table.from_arrays(arrays, names=fields.names)
    return found


def _borrow_blobs(blobs: Sequence[Any]) -> pa.ChunkedArray:
    """Return payloads as a column: large ones where they lie, small ones one behind the other, as far as 32-bit offsets reach."""
    chunks: list[pa.Array] = []
    small: list[bytes | None] = []
    size = 0
    for blob in blobs:
        length = 0 if blob is None else len(blob)
        if small and (length >= _LARGE_BLOB or size + length > _LONGEST):
            chunks.append(array_of(small, pa.binary()))
            small, size = [], 0
        if length >= _LARGE_BLOB:
            ends = pa.py_buffer(struct.pack("=ii", 0, length))
            chunks.append(pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(blob)]))
        else:
            small.append(blob)
            size += length
    if small:
        chunks.append(array_of(small, pa.binary()))
    return pa.chunked_array(chunks, pa.binary())


def _column(rows: Columns, field: pa.Field) -> pa.Array:
    found = rows.read_strided_values(field.name)
    return null_column(field.type, rows.rows) if found is None else array_of(found[0], field.type, *found[1:])


@dataclass(frozen=True, slots=True)
class BatchStamp:
    """What only the main process knows of a batch: lists are by place in the batch."""

    run_id: str
    epoch: int
    batch: int | None
    visits: Sequence[int]
    #: Only where the worker did not know them: an iterable dataset's items are numbered as they arrive.
    indices: Sequence[int] | None = None
    split: str | None = None
    rank: int | None = None
    #: The run's ordinal for each ordinal that the worker used, where they differ.
    stages: Mapping[int, int] | None = None

    def apply(self, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
        """Return the rows of one batch with the columns of the store's tables."""
        return {name: stamp_rows(name, table, [self], [table.num_rows]) for name, table in tables.items()}


def stamp_rows(name: str, table: pa.Table, stamps: Sequence[BatchStamp], counts: Sequence[int]) -> pa.Table:
    """Return rows with the columns of a table of the store; so many of them, one behind the other, belong to each stamp."""
    place = _places(table["position"], stamps, counts)
    extra: dict[str, Any] = {
        "run_id": _of_each([stamp.run_id for stamp in stamps], counts, pa.string()),
        "epoch": _of_each([stamp.epoch for stamp in stamps], counts, pa.int32()),
        "batch": _of_each([stamp.batch for stamp in stamps], counts, pa.int64()),
        "visit": array_of([visit for stamp in stamps for visit in stamp.visits], pa.int32()).take(place),
    }
    if all(stamp.indices is not None for stamp in stamps):
        indices = [index for stamp in stamps for index in stamp.indices or ()]
        extra["index"] = array_of(indices, pa.int64()).take(place)
    if name == "samples":
        if "index" in extra:
            extra["source"] = _number_sources(table["source"].to_pylist(), extra["index"].to_pylist())
        if any(stamp.split is not None for stamp in stamps):
            own = zip(
                _repeat_per_row([stamp.split for stamp in stamps], counts), table["split"].to_pylist(), strict=True
            )
            extra["split"] = array_of([known if split is None else split for split, known in own], pa.string())
        extra["rank"] = _of_each([stamp.rank for stamp in stamps], counts, pa.int32())
    if "stage" in table.column_names and any(stamp.stages for stamp in stamps):
        known = zip(
            _repeat_per_row([stamp.stages or {} for stamp in stamps], counts), table["stage"].to_pylist(), strict=True
        )
        extra["stage"] = array_of([stages.get(number, number) for stages, number in known], pa.int32())
    schema = SCHEMAS[name]
    return pa.table([extra[f.name] if f.name in extra else table[f.name] for f in schema], schema=schema)


def _places(positions: pa.ChunkedArray, stamps: Sequence[BatchStamp], counts: Sequence[int]) -> pa.Array:
    """Return where each row's sample is among those of all stamps."""
    place = positions.chunk(0) if positions.num_chunks == 1 else positions.combine_chunks()
    if len(stamps) == 1:
        return place
    starts = np.cumsum([0, *(len(stamp.visits) for stamp in stamps[:-1])])
    return pa.array(place.to_numpy() + np.repeat(starts, counts))


def _repeat_per_row(values: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    """Return a value for each row."""
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


def _of_each(values: Sequence[Any], counts: Sequence[int], kind: pa.DataType) -> pa.Array:
    """Return a column with the value of its stamp in each row."""
    return (
        constant_column(values[0], kind, counts[0])
        if len(values) == 1
        else array_of(_repeat_per_row(values, counts), kind)
    )


def _number_sources(sources: list[str | None], indices: list[int]) -> pa.Array:
    """Return the sources of items that are numbered as they arrive; a file keeps its name."""
    made = [
        f"dataset://{number}" if source is None or source.startswith("dataset://") else source
        for source, number in zip(sources, indices, strict=True)
    ]
    return pa.array(made, pa.string())


def table_of(name: str, columns: Mapping[str, Any]) -> pa.Table:
    """Return a table of the store from Python lists or numpy arrays; a column left out is NULL."""
    schema = SCHEMAS[name]
    length = len(next(iter(columns.values()))) if columns else 0
    arrays = [_array(columns[f.name], f.type) if f.name in columns else null_column(f.type, length) for f in schema]
    return pa.table(arrays, schema=schema)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_list(kind) and getattr(values, "ndim", 1) == 2:
        rows, width = values.shape
        flat = pa.array(values.reshape(-1), kind.value_type)
        return pa.ListArray.from_arrays(pa.array(range(0, (rows + 1) * width, width or 1), pa.int32()), flat)
    return array_of(values, kind)


def join_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Return several tables of one schema as one."""
    return pa.concat_tables(tables)


def copy_rows(table: pa.Table) -> pa.Table:
    """Return the same rows in memory of their own."""
    return table.take(pa.array(np.arange(table.num_rows)))


def fail_samples(samples: pa.Table, stage: str, errors: Mapping[int, str]) -> pa.Table:
    """Return rows of `samples` with some of them, by position, failed at a stage."""
    changed: dict[str, list[Any]] = {name: samples[name].to_pylist() for name in ("status", "failed_stage", "error")}
    for row, position in enumerate(samples["position"].to_pylist()):
        if position in errors:
            changed["status"][row], changed["failed_stage"][row], changed["error"][row] = (
                "failed",
                stage,
                errors[position],
            )
    for name, values in changed.items():
        place = samples.schema.get_field_index(name)
        samples = samples.set_column(
            place, samples.schema.field(place), pa.array(values, samples.schema.field(place).type)
        )
    return samples


def place_rows(samples: pa.Table, batches: Sequence[int | None], positions: Sequence[int | None]) -> pa.Table:
    """Return rows of `samples` with the batch, and the place in it, that each turned out to have; None for one in no batch."""
    columns = {"batch": pa.array(batches, pa.int64()), "position": pa.array(positions, pa.int32())}
    for name, column in columns.items():
        at = samples.schema.get_field_index(name)
        samples = samples.set_column(at, samples.schema.field(at), column)
    return samples
