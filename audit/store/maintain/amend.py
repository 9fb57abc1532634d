"""Amend a finished run: its name, its tags, its findings. Rows of what was recorded are never touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from audit.identity import check_run_name
from audit.records import Part, Run, as_tags
from audit.store.commits import commit_whole, run_folder
from audit.store.manifest import Manifest, lock_manifest
from audit.store.part_file import part_of
from audit.store.read.reader import Reader
from audit.store.schema import SCHEMAS
from audit.tables import TABLES, FindingRow
from audit.texts import as_utf8


def tag_run(reader: Reader, run_id: str, tags: Mapping[str, str], remove: Iterable[str] = ()) -> None:
    """Add tags to a run, or replace those of the same names. StoreReadOnly or StoreBusy where that cannot be."""
    removed = set(remove)

    def change(run: Run) -> None:
        kept = {key: value for key, value in run.tags.items() if key not in removed}
        run.tags = {**kept, **as_tags(tags)}

    _change_row(reader, run_id, change)


def rename_run(reader: Reader, run_id: str, name: str | None) -> None:
    """Give a run another name, or none."""
    check_run_name(name)

    def change(run: Run) -> None:
        run.name = name

    _change_row(reader, run_id, change)


def _change_row(reader: Reader, run_id: str, change: Callable[[Run], None]) -> None:
    filesystem = reader.filesystem
    with lock_manifest(filesystem, run_id) as manifest:
        change(manifest.run)
        commit_whole(filesystem, manifest)
    reader.refresh()


def append_findings(reader: Reader, run_id: str, rows: Sequence[FindingRow]) -> None:
    """Put these rows in the place of the run's earlier findings. StoreReadOnly or StoreBusy where that cannot be."""
    replace_table(reader, run_id, "findings", lambda: table_of_rows("findings", rows))


def replace_rows(
    reader: Reader, run_id: str, table: str, change: Callable[[list[dict[str, Any]]], Sequence[Mapping[str, Any]]]
) -> None:
    """Put what `change` makes of a table's rows in their place, under the run's lock."""

    def make() -> pa.Table:
        reader.refresh()  # under the lock: what another process has just written is not lost
        return table_of_rows(table, change(reader.rows(TABLES[table], run_id)))

    replace_table(reader, run_id, table, make)


def replace_table(reader: Reader, run_id: str, table: str, make: Callable[[], pa.Table]) -> None:
    """Put new rows, made under the run's lock, in the place of a table's earlier ones, as one part."""
    filesystem = reader.filesystem
    with lock_manifest(filesystem, run_id) as manifest:
        made = make()
        before = [part.file for part in manifest.parts if part.table == table]
        manifest.parts = [part for part in manifest.parts if part.table != table]
        if made.num_rows:
            manifest.parts.append(_write(reader, manifest, table, made))
        commit_whole(filesystem, manifest)
        _tidy(reader, manifest, table, before)
    reader.refresh()


def table_of_rows(table: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table of the store's schema."""
    schema = SCHEMAS[table]
    plain = [{field.name: _text(row.get(field.name)) for field in schema} for row in rows]
    return pa.Table.from_pylist(plain, schema=schema)


def _write(reader: Reader, manifest: Manifest, table: str, made: pa.Table) -> Part:
    # Numbered by commit: the name of an earlier look is never used again for other rows.
    part, data = part_of(table, made, number=manifest.commit + 1)
    reader.filesystem.replace(f"{run_folder(manifest.run.run_id)}/{part.file}", data)
    return part


def _text(value: Any) -> Any:
    # A file name need not be UTF-8; Arrow's strings must be.
    return as_utf8(value) if isinstance(value, str) else value


def _tidy(reader: Reader, manifest: Manifest, table: str, before: Sequence[str]) -> None:
    """Delete older looks, but the last: a reader that opened the store a moment ago may still ask for it."""
    folder = run_folder(manifest.run.run_id)
    listed = {part.file for part in manifest.parts} | set(before)
    for name in reader.filesystem.list(f"{folder}/{table}"):
        if name.endswith(".parquet") and f"{table}/{name}" not in listed:
            reader.filesystem.remove(f"{folder}/{table}/{name}")
