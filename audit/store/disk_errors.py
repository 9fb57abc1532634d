"""What the disk refuses, as an error of the store: what happened, where, and what to do next."""

from __future__ import annotations

import errno

from audit.errors import StoreError, StoreReadOnly

_READ_ONLY = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT}


def read_error(location: str, path: str, error: OSError) -> StoreError:
    """Return the error for a path of the store that cannot be read."""
    where = f"{location}/{path}" if path else location
    return StoreError(f"{where} cannot be read: {error.strerror or error}.", hint="Check its permissions and the disk.")


def write_error(location: str, target: str, error: OSError) -> StoreError:
    """Return the error for a file or folder that cannot be written or deleted."""
    name = target.rpartition("/")[2]
    if error.errno in _READ_ONLY:
        return StoreReadOnly(
            f"The store {location} cannot be written: {error.strerror} ({name}).",
            hint="Choose another with --store, or change its permissions.",
        )
    if error.errno in _FULL:
        return StoreError(
            f"The disk is full: {name} could not be written to the store {location}.",
            hint="What was committed is safe. Free some space, then continue with: audit run --resume RUN",
        )
    return StoreError(f"{target} could not be written: {error.strerror or error}.", hint="Check the disk and the path.")
