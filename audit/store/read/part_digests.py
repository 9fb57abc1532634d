"""Each part is checked against its digest once, before anything is answered from it.

DuckDB does not verify page checksums: a flipped bit would be a wrong value with no error. A part that was checked is known
by its size and time; when these change it is checked again. A process of the sandbox answers one query. It is given the list of
parts that were checked before, and reports those that it checked itself; the process that asked checks these again, because it does
not believe the sandbox. In a bucket a check reads the whole object, so there it is done only if it is asked for: --verify-reads, `audit.open(…, verify_reads=True)`, $AUDIT_VERIFY_READS.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Collection, Iterable
from contextlib import closing, suppress
from typing import Any

from audit.records import Part
from audit.store.commits import run_folder
from audit.store.filesystem import Filesystem, RandomReader
from audit.store.manifest import Manifest

_BLOCK = 2**20
#: Smaller parts are checked again in no time.
_LARGE = 2**18
_MOST_SENT = 2_000
_checked_parts: dict[tuple[str, str], tuple[tuple[int, ...], str]] = {}
_lock = threading.Lock()


def is_intact(filesystem: Filesystem, where: str, part: Part, reader: RandomReader, verify: bool | None = None) -> bool:
    """Return whether the bytes of an open part have the digest that its manifest lists.

    With `verify` None, only parts on this machine are checked; with False none.
    """
    stamp = filesystem.stamp(where) if verify is not False else None
    if verify is False or (stamp is None and not verify):
        return True
    key, state = (filesystem.location, where), (stamp or (part.bytes,), part.sha256)
    with _lock:
        if _checked_parts.get(key) == state:
            return True
    if _digest(reader) != part.sha256:
        return False
    note_intact(filesystem, where, part, stamp)
    return True


def note_intact(filesystem: Filesystem, where: str, part: Part, stamp: tuple[int, ...] | None) -> None:
    """Note that a part has its digest, so that a later look does not compute it again; `stamp` is of before it was read."""
    with _lock:
        _checked_parts[filesystem.location, where] = (stamp or (part.bytes,), part.sha256)


def check_parts(filesystem: Filesystem, manifests: Iterable[Manifest], paths: Collection[str]) -> None:
    """Check the parts with these paths now, so that a later look finds them checked. A damaged part is not noted."""
    for manifest in manifests:
        for part in manifest.parts:
            where = f"{run_folder(manifest.run.run_id)}/{part.file}"
            if where in paths:
                with suppress(OSError), closing(filesystem.open(where)) as reader:
                    is_intact(filesystem, where, part, reader)


def list_checked_parts(location: str) -> list[list[Any]]:
    """Return the large parts of a store on this machine that this process has found intact, for a process that it asks."""
    with _lock:
        known = list(_checked_parts.items())
    found = [
        [where, stamp, sha256]
        for (place, where), (stamp, sha256) in known
        if len(stamp) > 1 and stamp[1] >= _LARGE and os.path.abspath(place) == location
    ]
    return found[-_MOST_SENT:]


def trust_digests(location: str, checked: list[list[Any]]) -> None:
    """Take over what `checked_parts` gave in the process that asks."""
    with _lock:
        for where, stamp, sha256 in checked:
            _checked_parts[location, where] = tuple(stamp), sha256


def _digest(reader: RandomReader) -> str:
    digest = hashlib.sha256()
    for offset in range(0, reader.size, _BLOCK):
        digest.update(reader.read_at(offset, _BLOCK))
    return digest.hexdigest()
