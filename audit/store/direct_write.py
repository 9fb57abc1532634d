"""Write a large file without a copy of it in the kernel's memory: that copy takes more time than all else that a part needs.

Only memory that begins at a page can be written so, and only where the file system allows it; everything else is written as usual.
"""

from __future__ import annotations

import errno
import fcntl
import os

#: Smaller files are written as usual: the disk is asked once for each call.
_LEAST = 1 << 20
#: Whatever the disk's blocks are, they divide this.
_BLOCK = 4096


def write_whole(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data` to a new, empty file."""
    view = memoryview(data).cast("B")
    done = _write_blocks(descriptor, view) if len(view) >= _LEAST else 0
    while done < len(view):
        done += os.write(descriptor, view[done:])


def _write_blocks(descriptor: int, view: memoryview) -> int:
    """Write whole blocks as far as the file system allows it; return how many bytes were written."""
    flag, done, end = getattr(os, "O_DIRECT", 0), 0, len(view) // _BLOCK * _BLOCK
    if not flag:
        return 0
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag)
        # A call that was cut short elsewhere than at a block's end leaves the rest to the usual way.
        while done < end and done % _BLOCK == 0:
            done += os.write(descriptor, view[done:end])
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return done
