"""Rows of one batch as one buffer, so that they cross a process boundary without being pickled.

A worker gathers rows in `Columns`, packs them as Arrow streams into one block of bytes that
travels through shared memory, and the main process unpacks them without a copy. What only the
main process knows (run, epoch, batch number, how often an index was drawn) is stamped on there.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from audit.records import Columns
from audit.store.schema import SCHEMAS

_STAMPED = {"run_id", "epoch", "visit", "batch"}
_HEADER = struct.Struct("<16sQ")


def _packed_schema(table: str) -> pa.Schema:
    fields = [field for field in SCHEMAS[table] if field.name not in _STAMPED]
    if table != "samples" and "index" in SCHEMAS[table].names and "position" not in SCHEMAS[table].names:
        # The place in the batch is how a row finds its visit number again.
        fields.append(pa.field("position", pa.int32()))
    return pa.schema(fields)


PACKED = {table: _packed_schema(table) for table in ("samples", "stage_outputs", "payloads", "rng")}


def columns(table: str) -> Columns:
    """An empty gatherer for one of the tables that a worker fills."""
    return Columns(tuple(PACKED[table].names))


def pack(tables: Mapping[str, Columns]) -> bytearray:
    """The rows as bytes: for each table its name, its length and an Arrow stream."""
    streams = [(name, _record_batch(name, rows)) for name, rows in tables.items() if rows.rows]
    sizes = [_stream_size(record) for _, record in streams]
    packed = bytearray(sum(_HEADER.size + size for size in sizes))
    at = 0
    for (name, record), size in zip(streams, sizes, strict=True):
        _HEADER.pack_into(packed, at, name.encode(), size)
        at += _HEADER.size
        # Straight into its place: payloads are large, and each copy of them would cost as much as hashing them.
        _write_stream(pa.FixedSizeBufferWriter(pa.py_buffer(memoryview(packed)[at : at + size])), record)
        at += size
    return packed


def _record_batch(name: str, rows: Columns) -> pa.RecordBatch:
    schema = PACKED[name]
    arrays = [
        _blobs(rows.data[field.name]) if field.name == "data" else pa.array(rows.data[field.name], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _blobs(values: list[bytes | None]) -> pa.Array:
    """Payloads as one column: joined once, instead of appended one by one."""
    if None in values:
        return pa.array(values, pa.binary())
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum([len(value or b"") for value in values], out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        return pa.array(values, pa.binary())
    joined = pa.py_buffer(b"".join(value or b"" for value in values))
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets.astype(np.int32)), joined])


def _stream_size(record: pa.RecordBatch) -> int:
    sink = pa.MockOutputStream()
    _write_stream(sink, record)
    return int(sink.size())


def _write_stream(sink: Any, record: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, record.schema) as stream:
        stream.write_batch(record)


def unpack(buffer: Any) -> dict[str, pa.Table]:
    """What `pack` packed; the tables borrow the buffer's memory."""
    whole = pa.py_buffer(buffer)
    tables: dict[str, pa.Table] = {}
    at = 0
    while at < whole.size:
        name, size = _HEADER.unpack(whole.slice(at, _HEADER.size).to_pybytes())
        at += _HEADER.size
        with pa.ipc.open_stream(whole.slice(at, size)) as stream:
            tables[name.rstrip(b"\0").decode()] = stream.read_all()
        at += size
    return tables


@dataclass(frozen=True, slots=True)
class Stamp:
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
        """The rows with the columns of the store's tables."""
        return {name: self._apply(name, table) for name, table in tables.items()}

    def _apply(self, name: str, table: pa.Table) -> pa.Table:
        length = table.num_rows
        place = table["position"].combine_chunks()
        extra: dict[str, Any] = {
            "run_id": pa.repeat(pa.scalar(self.run_id, pa.string()), length),
            "epoch": pa.repeat(pa.scalar(self.epoch, pa.int32()), length),
            "batch": pa.repeat(pa.scalar(self.batch, pa.int64()), length),
            "visit": pc.take(pa.array(self.visits, pa.int32()), place),
        }
        if self.indices is not None:
            extra["index"] = pc.take(pa.array(self.indices, pa.int64()), place)
        if name == "samples":
            if self.indices is not None:
                extra["source"] = pa.array([f"dataset://{n}" for n in extra["index"].to_pylist()], pa.string())
            if self.split is not None:
                extra["split"] = pa.repeat(pa.scalar(self.split, pa.string()), length)
            extra["rank"] = pa.repeat(pa.scalar(self.rank, pa.int32()), length)
        if self.stages and "stage" in table.column_names:
            extra["stage"] = pa.array([self.stages.get(n, n) for n in table["stage"].to_pylist()], pa.int32())
        schema = SCHEMAS[name]
        return pa.table([extra[f.name] if f.name in extra else table[f.name] for f in schema], schema=schema)


def table_of(name: str, columns: Mapping[str, Any]) -> pa.Table:
    """A table of the store from Python lists or numpy arrays; a column left out is NULL."""
    schema = SCHEMAS[name]
    length = len(next(iter(columns.values()))) if columns else 0
    arrays = [_array(columns[f.name], f.type) if f.name in columns else pa.nulls(length, f.type) for f in schema]
    return pa.table(arrays, schema=schema)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_list(kind) and getattr(values, "ndim", 1) == 2:
        rows, width = values.shape
        flat = pa.array(values.reshape(-1), kind.value_type)
        return pa.ListArray.from_arrays(pa.array(range(0, (rows + 1) * width, width or 1), pa.int32()), flat)
    return pa.array(values, kind)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Several tables of one schema as one."""
    return pa.concat_tables(tables)


def placed(samples: pa.Table, batches: Sequence[int | None], positions: Sequence[int | None]) -> pa.Table:
    """Rows of `samples` with the batch, and the place in it, that each turned out to have; None for one in no batch."""
    columns = {"batch": pa.array(batches, pa.int64()), "position": pa.array(positions, pa.int32())}
    for name, column in columns.items():
        at = samples.schema.get_field_index(name)
        samples = samples.set_column(at, samples.schema.field(at), column)
    return samples
