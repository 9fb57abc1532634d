"""Which files this process has open, by what the system says: it knows those that code in C has opened, too.

Linux tells in `/proc/self`. Elsewhere nothing is known.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_FOLDER = "/proc/self/fd"

#: By number, the path and the inode of an open file.
Descriptors = dict[int, tuple[str, int]]


def open_descriptors() -> Descriptors:
    """Return the files that are open."""
    found: Descriptors = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(_FOLDER):
            with contextlib.suppress(OSError):
                found[int(name)] = os.readlink(os.path.join(_FOLDER, name)), os.fstat(int(name)).st_ino
    return found


def new_descriptors(before: Descriptors) -> Iterator[str]:
    """Yield the files that were opened since for reading alone, and are still open."""
    for number, (path, inode) in open_descriptors().items():
        if before.get(number) != (path, inode) and path.startswith(os.sep) and _is_read_only(number):
            yield path


def _is_read_only(number: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        with open(f"/proc/self/fdinfo/{number}") as file:
            flags = next((line.split()[1] for line in file if line.startswith("flags:")), None)
        return flags is not None and int(flags, 8) & os.O_ACCMODE == os.O_RDONLY
    return False
