"""What this process is: when it began, and so which files are certainly those that its modules were made from."""

from __future__ import annotations

import os
import time


def is_older_than_process(path: str) -> bool:
    """Return whether a file was last written before this process began, so that whatever it read is still in there."""
    try:
        return os.stat(path).st_mtime < _process_start()
    except OSError:
        return False


def _process_start() -> float:
    """Return when this process began, in seconds since 1970; 0 where the system does not say."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
