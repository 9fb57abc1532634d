"""Read a file once, whole, and never wait for one that is no file.

A FIFO among the pictures would block a plain `open` for ever, and opening a device may act on it; both are refused
with an OSError, like everything else that stops a file from being read. Nothing is decoded here.
"""

from __future__ import annotations

import errno
import os
import stat

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISCHR, "a character device"),
)


def read_file(path: bytes) -> bytes:
    """All bytes of a regular file; OSError for anything else."""
    if b"\0" in path:
        raise OSError(errno.EINVAL, "the name holds a NUL byte, so no file can have it", os.fsdecode(path))
    name = os.fsdecode(path)  # as text, since it is what the messages of OSError show
    _require_regular(os.stat(name).st_mode, path)
    # Between the two looks the file may have been replaced, hence not blocking here and looking again.
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        _require_regular(os.fstat(descriptor).st_mode, path)
        return file.readall()


def size_of(path: bytes) -> int:
    """The file's size without opening it, or -1 where it has none to tell."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1


def _require_regular(mode: int, path: bytes) -> None:
    if not stat.S_ISREG(mode):
        kind = next((noun for is_kind, noun in _KINDS if is_kind(mode)), "special")
        raise OSError(errno.EINVAL, f"is {kind}, not a file", os.fsdecode(path))
