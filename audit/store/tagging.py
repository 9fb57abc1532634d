"""Tags on a finished run: where else it is known. Rows are never touched."""

from __future__ import annotations

from collections.abc import Mapping

from audit.store.manifest import lock_path, manifest_path, read_manifest
from audit.store.reader import Reader


def tag_run(reader: Reader, run_id: str, tags: Mapping[str, str]) -> None:
    """Add tags to a run, or replace those of the same names. StoreReadOnly or StoreBusy where that cannot be."""
    filesystem = reader.filesystem
    with filesystem.lock(lock_path(run_id)):
        # Read under the lock: a commit of another process since the store was opened must not be undone.
        manifest = read_manifest(filesystem, run_id)
        manifest.run.tags = {**manifest.run.tags, **tags}
        manifest.commit += 1
        filesystem.replace(manifest_path(run_id), manifest.dump())
    reader.refresh()
