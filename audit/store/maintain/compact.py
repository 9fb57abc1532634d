"""What may be done to a store besides recording: merge the small parts of a run, or delete it.

Merging writes new parts and commits them in the place of the old ones. The old files stay until the next merge: a reader
that opened the store before the commit still asks for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

from audit.errors import StoreDamaged, StoreError
from audit.records import Part, Run
from audit.store.commits import commit_whole, run_folder
from audit.store.leftovers import remove_run
from audit.store.maintain.sorting import ORDER, SORTED_TABLES, are_in_order, sort_rows
from audit.store.manifest import MERGED_PREFIX, Manifest, find_unlisted, lock_manifest, lock_path, withdraw
from audit.store.part_file import part_of
from audit.store.read.reader import Reader

#: Merged parts hold at most about this much, so that memory stays bounded whatever the run's size.
_PART_BYTES = 128 * 2**20
#: Eight row groups: with more of them, reading the footer takes longer than reading a sample's rows.
_PART_ROWS = 262_144


def remove(reader: Reader, reference: str) -> Run:
    """Delete one run. Its manifest goes first, so that no reader ever finds half of it."""
    run = reader.run(reference)
    filesystem = reader.filesystem
    with filesystem.lock(lock_path(run.run_id)):
        remove_run(filesystem, run.run_id)
    reader.refresh()
    return run


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The result of merging the parts of a run."""

    run_id: str
    parts_before: int
    parts_after: int
    bytes_before: int
    bytes_after: int


def compact(reader: Reader, reference: str | None = None) -> CompactionResult:
    """Merge a run's small parts and sort their rows by index, in one commit."""
    run_id = reader.run(reference).run_id
    filesystem = reader.filesystem
    with lock_manifest(filesystem, run_id) as manifest:
        before = list(manifest.parts)
        # Listed now: after the commit, another writer may have come whose parts are not known here.
        left_behind = find_unlisted(filesystem, manifest)
        merged: list[Part] = []
        try:
            for table in dict.fromkeys(part.table for part in before):
                merged.extend(_merge_table(reader, manifest, table))
        except StoreError:
            withdraw(filesystem, run_id, [part for part in merged if part not in before])
            raise
        manifest.parts = merged
        if merged != before:
            commit_whole(filesystem, manifest)
        # Last, so that nothing is deleted that a damaged part could still be restored from.
        for path in {*left_behind} - {f"{run_folder(run_id)}/{part.file}" for part in merged}:
            filesystem.remove(path)
    reader.take(manifest)
    return CompactionResult(
        run_id, len(before), len(merged), sum(p.bytes for p in before), sum(p.bytes for p in merged)
    )


def _merge_table(reader: Reader, manifest: Manifest, table: str) -> Iterator[Part]:
    """Yield a table's parts after merging: few, and in order of index."""
    parts = [part for part in manifest.parts if part.table == table]
    if table in SORTED_TABLES and sum(part.rows for part in parts) > _PART_ROWS and not are_in_order(parts):
        schemas = [_schema(reader, manifest, part) for part in parts]
        # Parts that a later version wrote may have more columns, and stay as they are: sorted one by one.
        if all(schema.equals(schemas[0]) for schema in schemas):
            tables = sort_rows(reader.filesystem, manifest, parts, schemas[0], _PART_ROWS)
            for number, rows in enumerate(tables):
                yield _write_part(reader, manifest, table, rows, number)
            return
    yield from _merge_neighbours(reader, manifest, parts)


def _merge_neighbours(reader: Reader, manifest: Manifest, parts: list[Part]) -> Iterator[Part]:
    """Merge neighbours up to a size; a part that is large already stays as it is."""
    group: list[Part] = []
    for part in parts:
        larger = [*group, part]
        if sum(p.bytes for p in larger) > _PART_BYTES or sum(p.rows for p in larger) > _PART_ROWS:
            yield from _merge_group(reader, manifest, group)
            larger = [part]
        group = larger
    yield from _merge_group(reader, manifest, group)


def _merge_group(reader: Reader, manifest: Manifest, group: list[Part]) -> Iterator[Part]:
    if len(group) < 2:
        yield from group
        return
    tables = [pq.read_table(BytesIO(_read(reader, manifest, part)), page_checksum_verification=True) for part in group]
    rows = pa.concat_tables(tables, promote_options="default")
    keys = [(name, "ascending") for name in ORDER if name in rows.column_names]
    yield _write_part(reader, manifest, group[0].table, rows.sort_by(keys) if keys else rows, len(group))


def _write_part(reader: Reader, manifest: Manifest, table: str, rows: pa.Table, number: int) -> Part:
    part, data = part_of(table, rows, number=manifest.commit + 1, prefix=f"{MERGED_PREFIX}{number:05d}")
    reader.filesystem.replace(f"{run_folder(manifest.run.run_id)}/{part.file}", data)
    return part


def _schema(reader: Reader, manifest: Manifest, part: Part) -> pa.Schema:
    """Return what columns a part has that is as it was committed."""
    return pq.read_schema(BytesIO(_read(reader, manifest, part)))


def _read(reader: Reader, manifest: Manifest, part: Part) -> bytes:
    """Return a part's bytes, checked: a damaged part must not be copied into one that looks whole."""
    where = f"{run_folder(manifest.run.run_id)}/{part.file}"
    try:
        is_whole = reader.filesystem.size(where) == part.bytes
        data = reader.filesystem.read(where) if is_whole else b""
    except FileNotFoundError:
        is_whole, data = False, b""
    if not is_whole or hashlib.sha256(data).hexdigest() != part.sha256:
        raise StoreDamaged(f"{where} is damaged, so the run cannot be merged.", hint="See: audit store verify")
    return data
