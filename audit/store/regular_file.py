"""Open files of a store that may come from anybody: regular files alone, and nothing that waits or never ends.

A pipe in the place of a manifest would be waited for, a device would be read without end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from audit.errors import StoreDamaged, StoreError
from audit.store.filesystem import RandomReader


def open_regular(path: str | Path, flags: int = 0) -> int:
    """Return a descriptor to read a regular file; StoreDamaged for a pipe, a device or a socket."""
    try:
        # Without waiting for the process that writes to a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _not_regular(path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise _not_regular(path)


def _not_regular(path: str | Path) -> StoreDamaged:
    return StoreDamaged(
        f"{path} is a pipe, a device or a socket, and not a file.", hint="Remove it, or do not use this store."
    )


def check_no_link(root: str, path: str) -> None:
    """Raise StoreError where a folder between the root and a path is a symbolic link.

    What is written or deleted there would be outside of the store.
    """
    folder = root
    for name in path.split("/")[:-1]:
        folder = f"{folder}/{name}"
        if os.path.islink(folder):
            raise StoreError(
                f"{folder} is a symbolic link. audit writes and deletes nothing behind it: that may be outside of the store.",
                hint="Replace the link by a folder, or make the whole store a link.",
            )


class LocalReader(RandomReader):
    """One open file of a directory."""

    def __init__(self, path: str | Path) -> None:
        self._descriptor = open_regular(path)
        self.size = os.fstat(self._descriptor).st_size

    def read_at(self, offset: int, count: int) -> bytes:
        return os.pread(self._descriptor, count, offset)

    def close(self) -> None:
        # Taken first: closing lets other threads run, and closing a number twice closes somebody else's file.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
