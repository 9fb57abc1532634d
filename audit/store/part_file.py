"""A table as the Parquet file that a part is: its settings are those of docs/FORMAT.md, and no reader depends on them."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from audit.records import Part
from audit.store.part_buffer import PartBuffer
from audit.store.schema import SCHEMA_VERSION, add_missing_columns

_ROW_GROUP = 32_768
_PAYLOAD_GROUP_BYTES = 4 * 2**20
#: A table of fewer bytes is not compressed: zstd takes longer to begin with a column than to compress the few values in it.
_LEAST_COMPRESSED = 64 * 2**10
#: Columns worth a dictionary: few distinct values. Digests and numbers are not.
_DICTIONARY = {
    *("run_id", "split", "root", "label_name", "predicted_name", "status", "failed_stage", "name", "kind", "dtype"),
    *("mode", "payload", "form", "encoding", "layer", "layer_type", "direction", "port", "check_name", "severity"),
}


def part_of(
    name: str, table: pa.Table, number: int, prefix: str = "part", buffer: PartBuffer | None = None
) -> tuple[Part, memoryview]:
    """Return a table as a part: what the manifest says of it, and its bytes, which lie in `buffer` until its next part."""
    table = add_missing_columns(name, table)
    data = _parquet_bytes(name, _by_index(table), buffer or PartBuffer())
    digest = hashlib.sha256(data).hexdigest()
    # The digest in the name keeps a part of an earlier, uncommitted attempt from being in the way.
    file = f"{name}/{prefix}-{number:05d}-{digest[:8]}.parquet"
    first, last = index_bounds(table)
    return Part(name, file, table.num_rows, len(data), digest, first, last, SCHEMA_VERSION), data


def _parquet_bytes(name: str, table: pa.Table, buffer: PartBuffer) -> memoryview:
    room = buffer.reserve(table.get_total_buffer_size())  # `nbytes` takes a hundred times as long
    with pa.FixedSizeBufferWriter(pa.py_buffer(room)) as sink:
        try:
            write_parquet(table, sink, name)
            return room[: sink.tell()]
        except OSError:  # more room than expected: the file is larger than the table
            grown = pa.BufferOutputStream()
            write_parquet(table, grown, name)
            return memoryview(grown.getvalue())


def write_parquet(table: pa.Table, sink: object, name: str | None = None) -> None:
    """A Parquet file as the store keeps it: page checksums, statistics, small row groups."""
    payload = name == "payloads"
    group = _ROW_GROUP
    if payload and table.num_rows:
        group = max(1, int(table.num_rows * _PAYLOAD_GROUP_BYTES / max(table.nbytes, 1)))
    # Payloads are compressed already, one by one; beside them the other columns are nothing.
    is_compressed = not payload and table.get_total_buffer_size() >= _LEAST_COMPRESSED
    pq.write_table(
        table,
        sink,
        row_group_size=group,
        compression="zstd" if is_compressed else "none",
        compression_level=1 if is_compressed else None,
        use_dictionary=[c for c in table.column_names if c in _DICTIONARY],
        # In order of index, its differences are small: a fraction of the bytes, and quicker to read.
        column_encoding={"index": "DELTA_BINARY_PACKED"} if "index" in table.column_names else None,
        write_statistics=[c for c in table.column_names if c != "data"],
        write_page_checksum=True,
        store_schema=False,
    )


def _by_index(table: pa.Table) -> pa.Table:
    """Return the rows in order of index, so that one sample is in one row group even when the loader shuffles."""
    if "index" not in table.column_names or table.num_rows < 2:
        return table
    index = table["index"].combine_chunks()
    if index.null_count or pc.all(pc.less_equal(index[:-1], index[1:])).as_py():
        return table
    return table.take(pc.sort_indices(index))


def index_bounds(table: pa.Table) -> tuple[int | None, int | None]:
    """Return the least and greatest index among rows; None where there is none."""
    if "index" not in table.column_names:
        return None, None
    bounds = pc.min_max(table["index"]).as_py()
    return bounds["min"], bounds["max"]
