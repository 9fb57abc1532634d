"""Rows of one batch as one buffer, in which they cross a process boundary.

A worker gathers rows in `Columns` and packs them into one block of bytes. With payloads they are Arrow streams, which
the main process unpacks without a copy. Without, they are pickled lists: to make tables of one batch's few rows takes several
times as long, and the main process makes them of many batches at once. What only the main process knows (run, epoch, batch
number, how often an index was drawn) is stamped on there.
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
import pyarrow.compute as pc

from audit.records import Columns
from audit.store.arrow_columns import array_of, constant_column, null_column
from audit.store.schema import SCHEMAS

_STAMPED_COLUMNS = {"run_id", "epoch", "visit", "batch"}
#: A table's name, the length of its stream, and that of the payloads behind it.
_HEADER = struct.Struct("<16sQQ")
_BLOBS = "data"
#: A payload of at least so many bytes is not copied where it need not be.
_LARGE_BLOB = 16_384
_LONGEST = np.iinfo(np.int32).max
#: What pickled lists begin with; Arrow streams have the name of a table there.
_PICKLED = pickle.PROTO


def _packed_schema(table: str) -> pa.Schema:
    # Payloads are not part of the stream, which has their lengths: each is copied once, to where it is wanted.
    fields = [
        field if field.name != _BLOBS else pa.field(_BLOBS, pa.int64())
        for field in SCHEMAS[table]
        if field.name not in _STAMPED_COLUMNS
    ]
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

    To be called before workers are forked, each of which would load it by itself, for most of a second.
    """
    pa.array([0])


def columns(table: str) -> Columns:
    """Return an empty gatherer for one of the tables that a worker fills."""
    return Columns(_NAMES[table])


def pack(tables: Mapping[str, Columns], allocate: Callable[[int], Any] = bytearray) -> Any:
    """Return the rows as bytes in memory that `allocate` gives.

    They are pickled lists where there are no payloads, else for each table its name, an Arrow stream and its payloads.
    """
    lists = None if "payloads" in tables and tables["payloads"].rows else _pickle(tables)
    if lists is not None:
        packed = allocate(len(lists))
        memoryview(packed)[:] = lists
        return packed
    streams = [
        (name, _record_batch(name, rows), rows.data.get(_BLOBS, ())) for name, rows in tables.items() if rows.rows
    ]
    sizes = [(_stream_size(record), sum(map(len, filter(None, blobs)))) for _, record, blobs in streams]
    packed = allocate(sum(_HEADER.size + size + payload for size, payload in sizes))
    view, at = memoryview(packed), 0
    for (name, record, blobs), (size, payload) in zip(streams, sizes, strict=True):
        _HEADER.pack_into(view, at, name.encode(), size, payload)
        at += _HEADER.size
        _write_stream(pa.FixedSizeBufferWriter(pa.py_buffer(view[at : at + size])), record)
        at += size
        for blob in filter(None, blobs):
            view[at : at + len(blob)] = blob
            at += len(blob)
    return packed


class _PlainPickler(pickle.Pickler):
    """Pickles numbers, texts and containers of Python's own alone: another process may not have the class of anything else."""

    def reducer_override(self, value: Any) -> Any:
        raise pickle.PicklingError(f"a value is of the class {type(value).__qualname__}")


def _pickle(tables: Mapping[str, Columns]) -> bytes | None:
    """Return the rows pickled; None where a value is not one of Python's own, such as a name that is of a subclass of `str`."""
    packed = io.BytesIO()
    try:
        _PlainPickler(packed, pickle.HIGHEST_PROTOCOL).dump({name: rows.state for name, rows in tables.items()})
    except pickle.PicklingError:
        return None
    return packed.getvalue()


def unpack_lists(packed: Any) -> dict[str, Columns] | None:
    """Return the rows as they were gathered; None where `pack` made Arrow streams of them."""
    if bytes(memoryview(packed)[:1]) != _PICKLED:
        return None
    return {name: Columns.from_state(state) for name, state in pickle.loads(packed).items()}


def to_tables(tables: Mapping[str, Columns]) -> dict[str, pa.Table]:
    """Return what `unpack` would return of the packed rows, for rows that do not leave this process."""
    found = {}
    for name, rows in tables.items():
        if rows.rows:
            fields = PACKED_SCHEMAS[name]
            arrays = [
                _column(rows, field) if field.name != _BLOBS else _borrow_blobs(rows.data[_BLOBS]) for field in fields
            ]
            found[name] = pa.Table.from_arrays(arrays, names=fields.names)
    return found


def _borrow_blobs(blobs: Sequence[bytes | None]) -> pa.ChunkedArray:
    """Return payloads as a column: large ones where they lie, small ones one behind the other."""
    if max(map(len, filter(None, blobs)), default=0) < _LARGE_BLOB:
        return pa.chunked_array([array_of(blobs, pa.binary())])
    chunks: list[pa.Array] = []
    small: list[bytes | None] = []
    for blob in blobs:
        if blob is None or len(blob) < _LARGE_BLOB:
            small.append(blob)
            continue
        if small:
            chunks.append(array_of(small, pa.binary()))
            small = []
        ends = pa.py_buffer(struct.pack("=ii", 0, len(blob)))
        chunks.append(pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(blob)]))
    if small:
        chunks.append(array_of(small, pa.binary()))
    return pa.chunked_array(chunks, pa.binary())


def _record_batch(name: str, rows: Columns) -> pa.RecordBatch:
    schema = PACKED_SCHEMAS[name]
    arrays = [
        _column(rows, field) if field.name != _BLOBS else array_of(_lengths(rows.data[_BLOBS]), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(rows: Columns, field: pa.Field) -> pa.Array:
    found = rows.read_strided_values(field.name)
    return null_column(field.type, rows.rows) if found is None else array_of(found[0], field.type, *found[1:])


def _lengths(blobs: Sequence[bytes | None]) -> list[int | None]:
    return [None if blob is None else len(blob) for blob in blobs]


def _stream_size(record: pa.RecordBatch) -> int:
    sink = pa.MockOutputStream()
    _write_stream(sink, record)
    return int(sink.size())


def _write_stream(sink: Any, record: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, record.schema) as stream:
        stream.write_batch(record)


def unpack(buffer: Any) -> dict[str, pa.Table]:
    """Return what `pack` packed as tables, which may borrow the buffer's memory."""
    lists = unpack_lists(buffer)
    if lists is not None:
        return to_tables(lists)
    whole = pa.py_buffer(buffer)
    tables: dict[str, pa.Table] = {}
    at = 0
    while at < whole.size:
        name, size, payload = _HEADER.unpack(whole.slice(at, _HEADER.size).to_pybytes())
        at += _HEADER.size
        with pa.ipc.open_stream(whole.slice(at, size)) as stream:
            table = stream.read_all()
        at += size
        if _BLOBS in table.column_names:
            blobs = _blobs(table[_BLOBS].combine_chunks(), whole.slice(at, payload))
            table = table.set_column(table.schema.get_field_index(_BLOBS), _BLOBS, blobs)
        at += payload
        tables[name.rstrip(b"\0").decode()] = table
    return tables


def _blobs(lengths: pa.Array, joined: pa.Buffer) -> pa.ChunkedArray:
    """Return the payloads of these lengths, one behind the other in `joined`: in pieces that 32-bit offsets can reach."""
    ends = np.cumsum(pc.fill_null(lengths, 0).to_numpy(), dtype=np.int64)
    pieces, first, begun = [], 0, 0
    while first < len(lengths):
        last = max(first + 1, int(np.searchsorted(ends, begun + _LONGEST, side="right")))
        offsets = np.concatenate(([0], ends[first:last] - begun)).astype(np.int32)
        valid = lengths.slice(first, last - first).is_valid()
        piece = pa.Array.from_buffers(
            pa.binary(), last - first, [valid.buffers()[1], pa.py_buffer(offsets), joined.slice(begun)]
        )
        pieces.append(piece)
        first, begun = last, int(ends[last - 1])
    return pa.chunked_array(pieces, pa.binary())


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
