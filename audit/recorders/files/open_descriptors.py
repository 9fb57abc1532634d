"""Which files this process has open, by what the system says: it knows those that code in C has opened, too.

Linux tells in `/proc/self`. Elsewhere nothing is known.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_FOLDER = "/proc/self/fd"

#: By number, the device and the inode of an open file.
Descriptors = dict[int, tuple[int, int]]


def open_descriptors() -> Descriptors:
    """Return the files that are open."""
    found: Descriptors = {}
    with contextlib.suppress(OSError):
        for number in map(int, os.listdir(_FOLDER)):
            with contextlib.suppress(OSError):
                status = os.fstat(number)
                found[number] = status.st_dev, status.st_ino
    return found


def new_descriptors(before: Descriptors) -> Iterator[str]:
    """Yield the files that were opened since for reading alone, and are still open."""
    for number, identity in open_descriptors().items():
        if before.get(number) != identity:
            with contextlib.suppress(OSError):
                # Only of these: the system takes ten times as long to give a path as to give an inode.
                path = os.readlink(f"{_FOLDER}/{number}")
                if path.startswith(os.sep) and _is_read_only(number):
                    yield path


def _is_read_only(number: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        with open(f"/proc/self/fdinfo/{number}") as file:
            flags = next((line.split()[1] for line in file if line.startswith("flags:")), None)
        return flags is not None and int(flags, 8) & os.O_ACCMODE == os.O_RDONLY
    return False
