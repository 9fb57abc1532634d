"""The source file of a recorded sample, as it is now."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from audit.sources.reading import read_file
from audit.sources.remote import read_object
from audit.store.object_location import is_remote


def source_path(sample: Mapping[str, Any]) -> bytes | None:
    """Where the file is, as the file system spells it; None for a sample without a file."""
    source, root = sample["source"], sample["root"]
    if source is None or root is None:
        return None
    return os.path.join(os.fsencode(root), sample["source_raw"] or os.fsencode(source))


def source_digest_now(sample: Mapping[str, Any]) -> str | None:
    """The SHA-256 of the file's bytes; None when there is no file to read."""
    path = source_path(sample)
    if path is None:
        return None
    try:
        if is_remote(sample["root"]):
            name = sample["source_raw"] or os.fsencode(sample["source"])
            return hashlib.sha256(read_object(sample["root"], name)).hexdigest()
        return hashlib.sha256(read_file(path)).hexdigest()
    except OSError:
        return None
