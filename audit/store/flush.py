"""Flush what was written to the disk, so that it survives a power cut."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence


def flush_folder(path: str) -> None:
    """Flush the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_together(flushes: Sequence[Callable[[], None]]) -> None:
    """Make several flushes at the same time: the kernel then asks the disk once or twice, and not once for each."""
    errors: list[OSError] = []

    def flush(one: Callable[[], None]) -> None:
        try:
            one()
        except OSError as error:
            errors.append(error)

    threads = []
    for one in flushes[1:]:
        thread = threading.Thread(target=flush, args=(one,), name="audit-flush")
        try:
            thread.start()
            threads.append(thread)
        except RuntimeError:  # no thread can be started, as while Python ends
            flush(one)
    for one in flushes[:1]:
        flush(one)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
