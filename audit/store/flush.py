"""Flush what was written to the disk, so that it survives a power cut."""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

#: A thread takes as much of the processor as several flushes; the disk is kept busy by two.
_THREADS = 2


def flush_folder(path: str) -> None:
    """Flush the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_files(descriptors: Sequence[int]) -> None:
    """Flush open files. The kernel begins to write all of them before the first is waited for."""
    if hasattr(os, "posix_fadvise"):
        for descriptor in descriptors:
            # Linux begins to write what is not on the disk yet, and waits for nothing. A file system may not know this advice.
            with suppress(OSError):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    flush_together([functools.partial(os.fsync, descriptor) for descriptor in descriptors])


def flush_together(flushes: Sequence[Callable[[], None]]) -> None:
    """Make several flushes, two at a time: the disk may then take both at once. Raises the first error, after all were made."""
    left = deque(flushes)
    errors: list[OSError] = []

    def work() -> None:
        while True:
            try:
                flush = left.popleft()
            except IndexError:
                return
            try:
                flush()
            except OSError as error:
                errors.append(error)

    threads = []
    for _ in range(min(_THREADS, len(flushes)) - 1):
        thread = threading.Thread(target=work, name="audit-flush")
        # None can be started while Python ends, for example.
        with suppress(RuntimeError):
            thread.start()
            threads.append(thread)
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
