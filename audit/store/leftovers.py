"""Delete what killed processes left behind: temporary files, parts that no commit lists, runs whose removal was cut off.

A file is deleted only by who holds its run's lock, so never that of a living writer. In a bucket, where a lock may be lost,
only objects that are older than a day are deleted.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from audit.errors import StoreBusy, StoreError
from audit.store.commits import LOG_FOLDER, RUNS_FOLDER, manifest_path, remove_old_records, run_folder
from audit.store.filesystem import Filesystem
from audit.store.local_filesystem import LocalFilesystem
from audit.store.manifest import (
    MERGED_PREFIX,
    REMOVED_PREFIX,
    TOMBSTONE,
    find_unlisted,
    has_lost_manifest,
    lock_path,
    read_manifest,
)

#: A temporary file outside of any run belongs to nobody once it is this old, in seconds.
_ABANDONED_AFTER = 3600.0
#: An object that no commit lists is deleted when it is this old: its writer may have been paused.
_OLD_OBJECT = 86_400.0


@dataclass(slots=True)
class CleanupResult:
    """What was deleted."""

    files: int = 0
    bytes: int = 0
    #: Runs whose removal was finished, and folders of runs that never committed anything.
    folders: int = 0
    #: Runs that were left alone, with the reason.
    skipped: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return asdict(self)


def clean(filesystem: Filesystem) -> CleanupResult:
    """Delete leftovers in the whole store."""
    cleaned = CleanupResult()
    for name in filesystem.list(""):
        _remove_abandoned(filesystem, name, cleaned)
    for name in filesystem.list(RUNS_FOLDER):
        if name.startswith(REMOVED_PREFIX):
            _remove_hidden(filesystem, name, cleaned)
        elif name.startswith("."):
            _remove_abandoned(filesystem, f"{RUNS_FOLDER}/{name}", cleaned)
        else:
            _clean_run(filesystem, name, cleaned)
    return cleaned


def clean_interrupted(filesystem: Filesystem, run_ids: list[str]) -> None:
    """Delete what dead writers of these runs left behind, and removals that were cut off. Failing harms nobody."""
    if not isinstance(filesystem, LocalFilesystem):
        return
    with suppress(StoreError, OSError):
        for name in filesystem.list(RUNS_FOLDER):
            if name.startswith(REMOVED_PREFIX):
                _remove_hidden(filesystem, name, CleanupResult())
        for run_id in run_ids:
            _clean_run(filesystem, run_id, CleanupResult(), keep_replaced=True)


def _clean_run(filesystem: Filesystem, run_id: str, cleaned: CleanupResult, *, keep_replaced: bool = False) -> None:
    held = filesystem.list(run_folder(run_id))
    if not held:
        return
    try:
        with filesystem.lock(lock_path(run_id)):
            if TOMBSTONE in held:
                remove_run(filesystem, run_id)
                cleaned.folders += 1
            elif filesystem.exists(manifest_path(run_id)):
                remove_leftovers(filesystem, run_id, cleaned, keep_replaced=keep_replaced)
            elif not has_lost_manifest(filesystem, run_id):
                remove_run(filesystem, run_id)
                cleaned.folders += 1
            else:
                cleaned.skipped[run_id] = "its run.json is missing, but it has parts"
    except FileNotFoundError:
        cleaned.skipped[run_id] = "another process has removed it"
    except StoreBusy:
        cleaned.skipped[run_id] = "another process is writing it"
    except StoreError as error:
        cleaned.skipped[run_id] = error.message


def remove_leftovers(
    filesystem: Filesystem, run_id: str, cleaned: CleanupResult, *, keep_replaced: bool = False
) -> None:
    """Delete files of a run that its manifest does not list. Only who holds the run's lock may do it.

    With `keep_replaced`, parts of a run that was merged stay: a reader that was open before still asks for those that a
    merge replaced, and a damaged merged part can be restored from them. The next merge deletes them.
    """
    manifest = read_manifest(filesystem, run_id)
    folder = run_folder(run_id)
    is_merged = any(part.file.rpartition("/")[2].startswith(MERGED_PREFIX) for part in manifest.parts)
    paths = [] if keep_replaced and is_merged else find_unlisted(filesystem, manifest)
    for place in (folder, f"{folder}/{LOG_FOLDER}"):
        paths += [f"{place}/{name}" for name in filesystem.list(place) if _is_temporary(name)]
    if isinstance(filesystem, LocalFilesystem):
        remove_old_records(filesystem, run_id, manifest.snapshot, is_open=manifest.is_open)
    for path in paths:
        _remove_file(filesystem, path, cleaned)


def remove_run(filesystem: Filesystem, run_id: str) -> None:
    """Delete a run's folder, so that a process that is killed meanwhile leaves nothing that looks like damage.

    Only who holds the run's lock may do it.
    """
    folder = run_folder(run_id)
    if isinstance(filesystem, LocalFilesystem):
        filesystem.remove(filesystem.hide(folder))
        return
    # A bucket cannot rename: the tombstone is there before the manifest goes, and until everything else is gone.
    tombstone = f"{folder}/{TOMBSTONE}"
    with suppress(FileExistsError):
        filesystem.create(tombstone, b"This run is being removed.\n")
    filesystem.remove(manifest_path(run_id))
    for name in filesystem.list(folder):
        if name != TOMBSTONE:
            filesystem.remove(f"{folder}/{name}")
    filesystem.remove(tombstone)


def _remove_hidden(filesystem: Filesystem, name: str, cleaned: CleanupResult) -> None:
    """Finish a removal, unless the process that began it is still at it."""
    path = f"{RUNS_FOLDER}/{name}"
    if not filesystem.is_locked(f"{path}/{lock_path('x').rpartition('/')[2]}"):
        filesystem.remove(path)
        cleaned.folders += 1


def _remove_abandoned(filesystem: Filesystem, path: str, cleaned: CleanupResult) -> None:
    """Delete a temporary file that no lock guards, once it is old."""
    if not _is_temporary(path.rpartition("/")[2]) or not isinstance(filesystem, LocalFilesystem):
        return
    stamp = filesystem.stamp(path)
    if stamp is not None and time.time() - stamp[2] / 1e9 > _ABANDONED_AFTER:
        _remove_file(filesystem, path, cleaned)


def _remove_file(filesystem: Filesystem, path: str, cleaned: CleanupResult) -> None:
    age = filesystem.age(path)
    if age is None or (age < _OLD_OBJECT and not isinstance(filesystem, LocalFilesystem)):
        return
    size = filesystem.size(path)
    filesystem.remove(path)
    cleaned.files += 1
    cleaned.bytes += size


def _is_temporary(name: str) -> bool:
    return name.startswith(".") and name.endswith(".tmp")
