"""The source file of a recorded sample, as it is now."""

from __future__ import annotations

import errno
import hashlib
import os
from typing import Literal, TypedDict

from audit.sources.archive import read_member
from audit.sources.contact import may_contact, require_contact
from audit.sources.files import open_file, read_file, size_of
from audit.sources.remote import read_object
from audit.store.bucket.location import is_remote
from audit.tables import SampleSourceRow

#: `not read`: only the store names the bucket that it is in (see sources/contact.py).
SourceState = Literal["unchanged", "changed", "missing", "not read"]


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
    """Return all bytes of the file or the object; OSError where they cannot be read, or must not be asked for."""
    source, root = sample["source"], sample["root"]
    if source is None or root is None:
        raise FileNotFoundError(errno.ENOENT, "the sample has no file", str(source))
    name = sample["source_raw"] or os.fsencode(source)
    if is_remote(root):
        require_contact(root)
        return read_object(root, name)
    path = os.path.join(os.fsencode(root), name)
    if b"#" in name and not os.path.lexists(path):
        return read_member(os.fsdecode(path))
    return read_file(path)


def read_recorded_source(sample: SourceFields, digest: str | None) -> bytes:
    """Return the bytes of the file if they are those that were recorded; OSError for any other.

    For what is shown to others: a store may name any file of this machine.
    """
    data = read_source(sample)
    if digest is None or hashlib.sha256(data).hexdigest() != digest:
        raise OSError(errno.EINVAL, "is not what was recorded", str(sample["source"]))
    return data


def source_digest_now(sample: SourceFields) -> str | None:
    """Return the SHA-256 of the file's bytes; None when there is no file to read."""
    try:
        path = source_path(sample)
        if path is None or is_remote(sample["root"] or "") or not os.path.lexists(path):
            return hashlib.sha256(read_source(sample)).hexdigest()
        with open_file(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return None


def compare_source(sample: SourceFields, digest: str | None, size: int | None) -> tuple[SourceState | None, str | None]:
    """Return the state of a file against what was recorded of it, and its digest now, where it was read.

    The state is None where nothing was recorded to compare with. A file of another size is not read.
    """
    root, path = sample["root"], source_path(sample)
    if root is None or path is None:
        return None, None
    if not may_contact(root):
        return "not read", None
    found = size_of(path) if not is_remote(root) else -1
    if digest is None:
        return (None if found >= 0 or source_digest_now(sample) is not None else "missing"), None
    if size is not None and found >= 0 and found != size:
        return "changed", None
    now = source_digest_now(sample)
    if now is None:
        return "missing", None
    return ("unchanged" if now == digest else "changed"), now


class SourceStates:
    """Compares recorded files with what they are now. A file that many samples share is read once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str | None, str, str | None], tuple[SourceState | None, str | None]] = {}

    def of(self, row: SampleSourceRow) -> SourceState | None:
        """Return the state of one row of `sample_sources`; None where there is nothing to compare."""
        if row["root"] is None or row["digest"] is None:
            return None
        key = (row["root"], row["source"], row["digest"])
        if key not in self._found:
            place: SourceFields = {"source": row["source"], "root": row["root"], "source_raw": row["source_raw"]}
            self._found[key] = compare_source(place, row["digest"], row["bytes"])
        return self._found[key][0]

    def digest_now(self, row: SampleSourceRow) -> str | None:
        """Return the digest that `of` compared; None where it did not read the file."""
        return self._found.get((row["root"], row["source"], row["digest"]), (None, None))[1]
