"""Amend a finished run: its name, its tags, its findings. Rows of what was recorded are never touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from audit.identity import check_run_name
from audit.records import Part, Run
from audit.store.commits import commit_whole, run_folder
from audit.store.manifest import Manifest, locked_manifest
from audit.store.part_file import part_of
from audit.store.read.reader import Reader
from audit.store.schema import SCHEMAS
from audit.tables import FindingRow


def tag_run(reader: Reader, run_id: str, tags: Mapping[str, str], remove: Iterable[str] = ()) -> None:
    """Add tags to a run, or replace those of the same names. StoreReadOnly or StoreBusy where that cannot be."""
    removed = set(remove)

    def change(run: Run) -> None:
        kept = {key: value for key, value in run.tags.items() if key not in removed}
        run.tags = {**kept, **tags}

    _change_row(reader, run_id, change)


def rename_run(reader: Reader, run_id: str, name: str | None) -> None:
    """Give a run another name, or none."""
    check_run_name(name)

    def change(run: Run) -> None:
        run.name = name

    _change_row(reader, run_id, change)


def _change_row(reader: Reader, run_id: str, change: Callable[[Run], None]) -> None:
    filesystem = reader.filesystem
    with locked_manifest(filesystem, run_id) as manifest:
        change(manifest.run)
        commit_whole(filesystem, manifest)
    reader.refresh()


_TABLE = "findings"


def append_findings(reader: Reader, run_id: str, rows: Sequence[FindingRow]) -> None:
    """Put these rows in the place of the run's earlier findings. StoreReadOnly or StoreBusy where that cannot be."""
    filesystem = reader.filesystem
    with locked_manifest(filesystem, run_id) as manifest:
        before = [part.file for part in manifest.parts if part.table == _TABLE]
        manifest.parts = [part for part in manifest.parts if part.table != _TABLE]
        if rows:
            manifest.parts.append(_write(reader, manifest, rows))
        commit_whole(filesystem, manifest)
        _tidy(reader, manifest, before)
    reader.refresh()


def _write(reader: Reader, manifest: Manifest, rows: Sequence[FindingRow]) -> Part:
    schema = SCHEMAS[_TABLE]
    plain = [{name: _text(value) for name, value in row.items()} for row in rows]
    # Numbered by commit: the name of an earlier look is never used again for other rows.
    part, data = part_of(_TABLE, pa.Table.from_pylist(plain, schema=schema), number=manifest.commit + 1)
    reader.filesystem.replace(f"{run_folder(manifest.run.run_id)}/{part.file}", data)
    return part


def _text(value: Any) -> Any:
    # A file name need not be UTF-8; Arrow's strings must be.
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _tidy(reader: Reader, manifest: Manifest, before: Sequence[str]) -> None:
    """Delete older looks, but the last: a reader that opened the store a moment ago may still ask for it."""
    folder = run_folder(manifest.run.run_id)
    listed = {part.file for part in manifest.parts} | set(before)
    for name in reader.filesystem.list(f"{folder}/{_TABLE}"):
        if name.endswith(".parquet") and f"{_TABLE}/{name}" not in listed:
            reader.filesystem.remove(f"{folder}/{_TABLE}/{name}")
