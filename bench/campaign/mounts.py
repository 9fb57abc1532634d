"""Small file systems in memory, to be filled. Only root can mount them."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NEW_MOUNTS = 0x00020000


@contextmanager
def mount_tmpfs(folder: Path | str, kilobytes: int) -> Iterator[bool]:
    """Mount a file system of that size on a folder for the length of the block; gives False where that is not allowed."""
    worked = _mount(folder, kilobytes)
    try:
        yield worked
    finally:
        if worked:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def mount_privately(folder: Path | str, kilobytes: int) -> bool:
    """Mount a file system of that size on a folder, for this process and its children alone; False where that is not allowed."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNTS) != 0:
        return False
    apart = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True)
    return apart.returncode == 0 and _mount(folder, kilobytes)


def _mount(folder: Path | str, kilobytes: int) -> bool:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], capture_output=True
    )
    return done.returncode == 0
