"""Give numpy's matrix products one thread while checks run.

The products of the checks are small. OpenBLAS shares each of them among all cores, and its threads wait for each other by
turning in circles: on a busy machine of two cores, comparing 10,000 pictures took four times as much processor time.
An environment variable would have to be set before numpy is imported, which a library cannot do.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

#: What OpenBLAS calls the two functions: in numpy's own wheels, and in builds of others.
_NAMES = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads")
_LOCK = threading.Lock()
#: How many callers need one thread now, and how many threads there were before the first of them.
_users, _before = 0, 0


@contextmanager
def single_blas_thread() -> Iterator[None]:
    """Let OpenBLAS use one thread until the end of the block; other libraries are left as they are."""
    global _users, _before
    found = _openblas()
    if found is None:
        yield
        return
    get_threads, set_threads = found
    with _LOCK:
        if not _users:
            _before = get_threads()
            set_threads(1)
        _users += 1
    try:
        yield
    finally:
        with _LOCK:
            _users -= 1
            if not _users:
                set_threads(_before)


@cache
def _openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return the functions that read and set the number of threads of the OpenBLAS that numpy brings; None if it brings none."""
    import numpy

    folder = Path(numpy.__file__).parent
    for file in (*folder.parent.glob("numpy.libs/*openblas*"), *folder.glob(".dylibs/*openblas*")):
        try:
            library = ctypes.CDLL(str(file))
        except OSError:
            continue
        for name in _NAMES:
            get_threads, set_threads = (getattr(library, name.format(verb), None) for verb in ("get", "set"))
            if get_threads is not None and set_threads is not None:
                set_threads.restype = None
                return get_threads, set_threads
    return None
