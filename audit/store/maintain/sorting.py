"""The rows of many parts in one order, however many they are: what memory cannot hold DuckDB puts aside on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise

import duckdb
import pyarrow as pa

from audit.errors import StoreError
from audit.records import Part
from audit.store.filesystem import Filesystem
from audit.store.manifest import Manifest
from audit.store.read.duckdb_files import PartFilesystem
from audit.store.sql_literal import literal

#: By index first: it is what a trace asks for, and all epochs of a sample lie together.
ORDER = ("index", "epoch", "visit", "stage")
#: Tables whose every row is about a visit, and small: rows with payloads would be put aside payload and all.
SORTED_TABLES = ("samples", "stage_outputs", "predictions")
#: What DuckDB may hold at once while it sorts.
_MEMORY = "1GB"
_BATCH = 65_536


def are_in_order(parts: Sequence[Part]) -> bool:
    """Return whether no part has an index that belongs before those of the part before it."""
    bounds = [(part.first_index, part.last_index) for part in parts]
    return all(last is not None and first is not None and last <= first for (_, last), (first, _) in pairwise(bounds))


def sort_rows(
    filesystem: Filesystem, manifest: Manifest, parts: Sequence[Part], schema: pa.Schema, rows: int
) -> Iterator[pa.Table]:
    """Yield all rows of one table's parts, in order, in tables of so many rows."""
    files = PartFilesystem(filesystem)
    chosen = Manifest(manifest.run, list(parts), manifest.commit)
    files.expose([chosen])
    names = [name for name, _, _ in files.parts_of(parts[0].table)]
    keys = ", ".join(name for name in ORDER if name in schema.names)
    query = f"FROM read_parquet({literal(names)}, hive_partitioning = false) ORDER BY {keys}"
    with tempfile.TemporaryDirectory(prefix="audit-sort-") as aside:
        settings: dict[str, str | bool | int | float | list[str]]
        settings = {"memory_limit": _MEMORY, "temp_directory": aside, "preserve_insertion_order": False}
        with duckdb.connect(config=settings) as connection:
            connection.register_filesystem(files)
            try:
                batches = connection.sql(query).to_arrow_reader(_BATCH)
                yield from _tables(batches, schema, rows)
            except (duckdb.Error, pa.ArrowException) as error:
                raise files.damage or StoreError(
                    f"{parts[0].table} of the run {manifest.run.run_id} could not be sorted: {error}",
                    hint="Sorting a large run needs about as much free space in $TMPDIR as its table takes uncompressed.",
                ) from error


def _tables(batches: Iterator[pa.RecordBatch], schema: pa.Schema, rows: int) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    for batch in batches:
        gathered.append(batch)
        if sum(one.num_rows for one in gathered) >= rows:
            yield pa.Table.from_batches(gathered).select(schema.names).cast(schema)
            gathered = []
    if gathered:
        yield pa.Table.from_batches(gathered).select(schema.names).cast(schema)
