"""Tags on a finished run: where else it is known. Rows are never touched."""

from __future__ import annotations

from collections.abc import Mapping

from audit.store.manifest import locked_manifest, manifest_path
from audit.store.reader import Reader


def tag_run(reader: Reader, run_id: str, tags: Mapping[str, str]) -> None:
    """Add tags to a run, or replace those of the same names. StoreReadOnly or StoreBusy where that cannot be."""
    filesystem = reader.filesystem
    with locked_manifest(filesystem, run_id) as manifest:
        manifest.run.tags = {**manifest.run.tags, **tags}
        manifest.commit += 1
        filesystem.replace(manifest_path(run_id), manifest.dump())
    reader.refresh()
