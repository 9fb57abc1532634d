"""Commits of a run: sealed records in an append-only log, and run.json, the snapshot that a reader begins with.

While a run is being written, each commit is one new file in its log, put there only if nobody else has written that
commit: it holds what the commit added, so that it costs the same however long the run is. Now and then, and when the run
ends, run.json is replaced by a snapshot of the whole. A run whose snapshot is not `running` has no log to be read; a process that
changes it replaces the snapshot.

Every record and snapshot ends with the SHA-256 of all its bytes before, and names the digest of the commit before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from audit.errors import StoreBusy, StoreError
from audit.records import Part, Run
from audit.store.filesystem import Filesystem
from audit.store.local_filesystem import LocalFilesystem
from audit.store.schema import FORMAT_NAME, FORMAT_VERSION

if TYPE_CHECKING:
    from audit.store.manifest import Manifest

RUNS_FOLDER = "runs"
LOG_FOLDER = "log"

_NAMES = {kind: tuple(field.name for field in fields(kind)) for kind in (Run, Part)}
_SEAL = b',\n "digest": "%s"\n}'
_SEAL_LENGTH = len(_SEAL % (b"0" * 64))
#: A snapshot is written when this many commits, and this share of all of them, lie in the log: on average a commit
#: rewrites eight parts' entries, and a reader opens at most an eighth of the commits as files.
_LEAST_TAIL = 64
_TAIL_SHARE = 8


def run_folder(run_id: str) -> str:
    """Return where a run lives in the store."""
    return f"{RUNS_FOLDER}/{run_id}"


def manifest_path(run_id: str) -> str:
    """Return where a run's snapshot lives."""
    return f"{run_folder(run_id)}/run.json"


def log_path(run_id: str, commit: int) -> str:
    """Return where the record of one commit lives."""
    return f"{run_folder(run_id)}/{LOG_FOLDER}/{commit:010d}.json"


def list_logged_commits(filesystem: Filesystem, run_id: str) -> list[int]:
    """Return the numbers of the commits that have a record in the run's log, in order."""
    names = filesystem.list(f"{run_folder(run_id)}/{LOG_FOLDER}")
    stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def seal(content: dict[str, Any]) -> tuple[bytes, str]:
    """Return the bytes of a record or snapshot, and the digest that they end with."""
    body = ("{\n" + ",\n".join(f" {json.dumps(key)}: {_value(value)}" for key, value in content.items())).encode()
    digest = hashlib.sha256(body).hexdigest()
    return body + _SEAL % digest.encode(), digest


def _value(value: Any) -> str:
    """Return a value as JSON in ASCII: one line for each item of a list, for people. json's own `indent` takes ten times as long."""
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"


def check_seal(data: bytes) -> str:
    """Return the digest that a record or snapshot ends with; ValueError where it is not that of its bytes."""
    digest = hashlib.sha256(data[:-_SEAL_LENGTH]).hexdigest()
    if data[-_SEAL_LENGTH:] != _SEAL % digest.encode():
        raise ValueError("its bytes do not have the digest that it ends with")
    return digest


def unseal(data: bytes) -> tuple[dict[str, Any], str]:
    """Return the content of a record or snapshot and its digest; ValueError where they do not belong together."""
    digest = check_seal(data)
    content = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content, digest


def create_run(filesystem: Filesystem, manifest: Manifest) -> None:
    """Write the first snapshot of a new run, or FileExistsError."""
    data, digest = seal(_snapshot(manifest, manifest.commit, manifest.previous, None))
    filesystem.create(manifest_path(manifest.run.run_id), data)
    manifest.head, manifest.is_open = digest, manifest.run.status == "running"


def commit_parts(filesystem: Filesystem, manifest: Manifest, added: Sequence[Part]) -> None:
    """Commit the run's row and parts that were added to the manifest since its last commit.

    Of an open run this appends to the log; a snapshot follows when the log has grown long, or when the run has ended.
    """
    if not manifest.is_open:
        commit_whole(filesystem, manifest)
        return
    tail = manifest.commit + 1 - manifest.snapshot
    is_long = tail >= max(_LEAST_TAIL, (manifest.commit + 1) // _TAIL_SHARE)
    is_last = manifest.run.status != "running" or is_long
    _append(filesystem, manifest, {"added": [_fields_of(part) for part in added]}, with_snapshot=is_last)


def commit_whole(filesystem: Filesystem, manifest: Manifest) -> None:
    """Commit the run's row and parts as they are now, whatever they were before."""
    if manifest.is_open:
        # The number is claimed in the log first: a writer that was paused and goes on finds it taken.
        parts = [_fields_of(part) for part in manifest.parts]
        _append(filesystem, manifest, {"parts": parts}, with_snapshot=True)
        return
    commit, previous = manifest.commit + 1, manifest.head
    data, digest = seal(_snapshot(manifest, commit, previous, None))
    filesystem.replace(manifest_path(manifest.run.run_id), data)
    manifest.commit, manifest.previous, manifest.head = commit, previous, digest
    _note_snapshot(filesystem, manifest)


def close_after_failure(filesystem: Filesystem, manifest: Manifest) -> None:
    """Commit a run's last row where an earlier commit has failed, perhaps after its record had been written."""
    try:
        commit_whole(filesystem, manifest)
    except (StoreError, OSError):
        # Under a lock that nobody else can hold, the record in the way is our own.
        if not isinstance(filesystem, LocalFilesystem) or not manifest.is_open:
            raise
        manifest.is_open = False
        commit_whole(filesystem, manifest)


def remove_old_records(filesystem: Filesystem, run_id: str, commit: int, *, is_open: bool) -> None:
    """Delete records that a snapshot has made superfluous. Only who holds the run's lock may do it."""
    folder = f"{run_folder(run_id)}/{LOG_FOLDER}"
    # Oldest first: a process that lists the log meanwhile sees that its beginning is gone, and starts again.
    for number in list_logged_commits(filesystem, run_id):
        if number <= commit:
            filesystem.remove(log_path(run_id, number))
    if not is_open and filesystem.exists(folder):
        filesystem.remove(folder)


def _append(filesystem: Filesystem, manifest: Manifest, parts: dict[str, Any], *, with_snapshot: bool) -> None:
    """Write the record of the next commit, and with it a snapshot that makes the log superfluous.

    The record gets its name first. If the power fails between both, a reader finds one of them or both, and the same in them.
    """
    run_id, commit, previous = manifest.run.run_id, manifest.commit + 1, manifest.head
    data, digest = seal({**_header(commit, previous), "run": _fields_of(manifest.run), **parts})
    try:
        with filesystem.open_writer() as files:
            files.create(log_path(run_id, commit), data)
            if with_snapshot:
                files.replace(manifest_path(run_id), seal(_snapshot(manifest, commit, previous, digest))[0])
    except FileExistsError:
        raise StoreBusy(
            f"Another process has written commit {commit} of the run {run_id} in the store {filesystem.location}.",
            hint="Two processes wrote to the same run. What they committed before is safe. Stop one of them.",
        ) from None
    manifest.commit, manifest.previous, manifest.head = commit, previous, digest
    if with_snapshot:
        _note_snapshot(filesystem, manifest)


def _note_snapshot(filesystem: Filesystem, manifest: Manifest) -> None:
    """Remember that run.json holds this commit, and delete the records before it."""
    run = manifest.run
    manifest.snapshot, manifest.is_open = manifest.commit, run.status == "running"
    # In a bucket a lock is none for ever: there the records stay, so that no number can be claimed twice.
    if isinstance(filesystem, LocalFilesystem):
        remove_old_records(filesystem, run.run_id, manifest.commit, is_open=manifest.is_open)


def _snapshot(manifest: Manifest, commit: int, previous: str | None, record: str | None) -> dict[str, Any]:
    """Return what run.json holds. `record` is the digest of this commit's record; None where the snapshot is the commit itself."""
    parts = [_fields_of(part) for part in manifest.parts]
    return {**_header(commit, previous), "record": record, "run": _fields_of(manifest.run), "parts": parts}


def _fields_of(row: Run | Part) -> dict[str, Any]:
    """Return what is to be written of a row, without the copies that `asdict` makes of everything in it."""
    return {name: getattr(row, name) for name in _NAMES[type(row)]}


def _header(commit: int, previous: str | None) -> dict[str, Any]:
    return {"format": {"name": FORMAT_NAME, "version": FORMAT_VERSION}, "commit": commit, "previous": previous}
