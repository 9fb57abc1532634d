"""The source file of a recorded sample, as it is now."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping
from typing import Any, Literal

from audit.sources.files import read_file
from audit.sources.remote import read_object
from audit.store.bucket.location import is_remote

SourceState = Literal["unchanged", "changed", "missing"]


def source_path(sample: Mapping[str, Any]) -> bytes | None:
    """Where the file is, as the file system spells it; None for a sample without a file."""
    source, root = sample["source"], sample["root"]
    if source is None or root is None:
        return None
    return os.path.join(os.fsencode(root), sample["source_raw"] or os.fsencode(source))


def read_source(sample: Mapping[str, Any]) -> bytes:
    """All bytes of the file or the object; OSError where they cannot be had."""
    path = source_path(sample)
    if path is None:
        raise FileNotFoundError(errno.ENOENT, "the sample has no file", str(sample["source"]))
    if is_remote(sample["root"]):
        return read_object(sample["root"], sample["source_raw"] or os.fsencode(sample["source"]))
    return read_file(path)


def source_digest_now(sample: Mapping[str, Any]) -> str | None:
    """The SHA-256 of the file's bytes; None when there is no file to read."""
    try:
        return hashlib.sha256(read_source(sample)).hexdigest()
    except OSError:
        return None


class SourceStates:
    """Compares recorded files with what they are now. A file that many samples share is read once."""

    def __init__(self) -> None:
        self._now: dict[tuple[str, str], str | None] = {}

    def of(self, row: Mapping[str, Any]) -> SourceState | None:
        """Return the state of one row of `sample_sources`; None where there is nothing to compare."""
        if row["root"] is None or row["digest"] is None:
            return None
        key = (row["root"], row["source"])
        if key not in self._now:
            self._now[key] = source_digest_now(row)
        now = self._now[key]
        if now is None:
            return "missing"
        return "unchanged" if now == row["digest"] else "changed"

    def digest_now(self, row: Mapping[str, Any]) -> str | None:
        """Return the digest that `of` compared."""
        return self._now.get((row["root"], row["source"]))
