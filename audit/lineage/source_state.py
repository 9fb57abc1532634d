"""The source file of a recorded sample, as it is now."""

from __future__ import annotations

import errno
import hashlib
import os
from typing import Literal, TypedDict

from audit.sources.archive import read_member
from audit.sources.files import read_file
from audit.sources.remote import read_object
from audit.store.bucket.location import is_remote
from audit.tables import SampleSourceRow

SourceState = Literal["unchanged", "changed", "missing"]


class SourceFields(TypedDict):
    """What a row of `samples` says of where its source is; any row that has these fields will do."""

    source: str | None
    root: str | None
    source_raw: bytes | None


def source_path(sample: SourceFields) -> bytes | None:
    """Return where the file is, as the file system spells it; None for a sample without a file."""
    source, root = sample["source"], sample["root"]
    if source is None or root is None:
        return None
    return os.path.join(os.fsencode(root), sample["source_raw"] or os.fsencode(source))


def read_source(sample: SourceFields) -> bytes:
    """Return all bytes of the file or the object; OSError where they cannot be had."""
    source, root = sample["source"], sample["root"]
    if source is None or root is None:
        raise FileNotFoundError(errno.ENOENT, "the sample has no file", str(source))
    name = sample["source_raw"] or os.fsencode(source)
    if is_remote(root):
        return read_object(root, name)
    path = os.path.join(os.fsencode(root), name)
    if b"#" in name and not os.path.lexists(path):
        return read_member(os.fsdecode(path))
    return read_file(path)


def source_digest_now(sample: SourceFields) -> str | None:
    """Return the SHA-256 of the file's bytes; None when there is no file to read."""
    try:
        return hashlib.sha256(read_source(sample)).hexdigest()
    except OSError:
        return None


class SourceStates:
    """Compares recorded files with what they are now. A file that many samples share is read once."""

    def __init__(self) -> None:
        self._now: dict[tuple[str | None, str], str | None] = {}

    def of(self, row: SampleSourceRow) -> SourceState | None:
        """Return the state of one row of `sample_sources`; None where there is nothing to compare."""
        if row["root"] is None or row["digest"] is None:
            return None
        key = (row["root"], row["source"])
        if key not in self._now:
            place: SourceFields = {"source": row["source"], "root": row["root"], "source_raw": row["source_raw"]}
            self._now[key] = source_digest_now(place)
        now = self._now[key]
        if now is None:
            return "missing"
        return "unchanged" if now == row["digest"] else "changed"

    def digest_now(self, row: SampleSourceRow) -> str | None:
        """Return the digest that `of` compared."""
        return self._now.get((row["root"], row["source"]))
