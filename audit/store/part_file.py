"""A table as the Parquet file that a part is: its settings are those of docs/FORMAT.md, and no reader depends on them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from audit.records import Part
from audit.store.compressed_table import CompressedTable
from audit.store.part_buffer import PartBuffer
from audit.store.schema import SCHEMA_VERSION, add_missing_columns

_ROW_GROUP = 32_768
_PAYLOADS = "payloads"
_PAYLOAD_GROUP_BYTES = 4 * 2**20
#: A table of fewer bytes is not compressed: zstd takes longer to begin with a column than to compress the few values in it.
_LEAST_COMPRESSED = 64 * 2**10
#: Columns worth a dictionary: few distinct values. Digests and numbers are not.
_DICTIONARY = {
    *("run_id", "split", "root", "label_name", "predicted_name", "status", "failed_stage", "name", "kind", "dtype"),
    *("mode", "payload", "form", "encoding", "layer", "layer_type", "direction", "port", "check_name", "severity"),
}


def part_of(
    name: str, table: pa.Table | CompressedTable, number: int, prefix: str = "part", buffer: PartBuffer | None = None
) -> tuple[Part, memoryview]:
    """Return a table as a part: what the manifest says of it, and its bytes, which lie in `buffer` until its next part."""
    data = _parquet_bytes(name, table, buffer or PartBuffer())
    digest = hashlib.sha256(data).hexdigest()
    # The digest in the name keeps a part of an earlier, uncommitted attempt from being in the way.
    file = f"{name}/{prefix}-{number:05d}-{digest[:8]}.parquet"
    first, last = index_bounds(table)
    return Part(name, file, table.num_rows, len(data), digest, first, last, SCHEMA_VERSION), data


def _parquet_bytes(name: str, table: pa.Table | CompressedTable, buffer: PartBuffer) -> memoryview:
    if isinstance(table, pa.Table):
        table = _by_index(add_missing_columns(name, table))
    room = buffer.reserve(table.get_total_buffer_size())  # `nbytes` takes a hundred times as long
    with pa.FixedSizeBufferWriter(pa.py_buffer(room)) as sink:
        try:
            _write_part(name, table, sink)
            return room[: sink.tell()]
        except OSError:  # more room than expected: the file is larger than the table
            grown = pa.BufferOutputStream()
            _write_part(name, table, grown)
            return memoryview(grown.getvalue())


def _write_part(name: str, table: pa.Table | CompressedTable, sink: object) -> None:
    if isinstance(table, pa.Table):
        write_parquet(table, sink, name)
        return
    is_compressed = table.get_total_buffer_size() >= _LEAST_COMPRESSED
    order = _order(table["index"]) if "index" in table.column_names else None
    places = np.arange(table.num_rows) if order is None else order.to_numpy().astype(np.int64)
    with ExitStack() as opened:
        writer = None
        # One row group after the other, so that only the rows of one are decompressed.
        for start in range(0, table.num_rows, _ROW_GROUP):
            group = add_missing_columns(name, table.take(places[start : start + _ROW_GROUP]))
            if writer is None:
                settings = _settings(name, group.column_names, is_compressed=is_compressed)
                writer = opened.enter_context(pq.ParquetWriter(sink, group.schema, **settings))
            writer.write_table(group, _ROW_GROUP)
            del group
            # Arrow would keep what this row group took, and take other memory for the next.
            pa.default_memory_pool().release_unused()


def write_parquet(table: pa.Table, sink: object, name: str | None = None) -> None:
    """Write a Parquet file as the store keeps it: page checksums, statistics, small row groups."""
    payload = name == _PAYLOADS
    group = _ROW_GROUP
    if payload and table.num_rows:
        group = max(1, int(table.num_rows * _PAYLOAD_GROUP_BYTES / max(table.nbytes, 1)))
    # Payloads are compressed already, one by one; beside them the other columns are nothing.
    is_compressed = not payload and table.get_total_buffer_size() >= _LEAST_COMPRESSED
    pq.write_table(
        table, sink, row_group_size=group, **_settings(name, table.column_names, is_compressed=is_compressed)
    )


def _settings(table: str | None, columns: Sequence[str], *, is_compressed: bool) -> dict[str, Any]:
    return {
        "compression": "zstd" if is_compressed else "none",
        "compression_level": 1 if is_compressed else None,
        "use_dictionary": [name for name in columns if name in _DICTIONARY],
        # In order of index, its differences are small: a fraction of the bytes, and quicker to read.
        "column_encoding": {"index": "DELTA_BINARY_PACKED"} if "index" in columns else None,
        "write_statistics": [name for name in columns if name != "data"],
        # A second checksum beside the part's SHA-256, for those who read a column of it alone: nobody reads payloads so, and theirs
        # would take twice as long as all the rest of writing them.
        "write_page_checksum": table != _PAYLOADS,
        "store_schema": False,
    }


def _by_index(table: pa.Table) -> pa.Table:
    """Return the rows in order of index, so that one sample is in one row group even when the loader shuffles."""
    order = _order(table["index"]) if "index" in table.column_names else None
    return table if order is None else table.take(order)


def _order(column: pa.ChunkedArray) -> pa.Array | None:
    """Return the places of rows in order of index; None where they are in order, or some have no index."""
    index = column.combine_chunks()
    if len(index) < 2 or index.null_count or pc.all(pc.less_equal(index[:-1], index[1:])).as_py():
        return None
    return pc.sort_indices(index)


def index_bounds(table: pa.Table | CompressedTable) -> tuple[int | None, int | None]:
    """Return the least and greatest index among rows; None where there is none."""
    if "index" not in table.column_names:
        return None, None
    bounds = pc.min_max(table["index"]).as_py()
    return bounds["min"], bounds["max"]
