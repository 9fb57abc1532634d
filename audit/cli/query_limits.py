"""What holds for a query on the command line, whatever DuckDB does: an end, and a limit of memory.

DuckDB's own limit covers its buffers, and it may ignore an interrupt. A command has its process for itself: the system limits its
memory, and it ends itself when a query goes on after its time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

import click

from audit.config import half_of_memory, parse_bytes
from audit.errors import QueryError

#: A query that was interrupted has so many seconds to stop by itself.
_GRACE = 5.0
#: What libraries and threads may reserve besides: address space, most of which is never used.
_RESERVED_BYTES = 2**30
_PER_THREAD = 192 * 2**20


@contextlib.contextmanager
def limit_process(memory_limit: str | None, timeout: float | None) -> Iterator[None]:
    """Limit the memory and the time of this process for the length of the block; QueryError where memory is not enough."""
    memory = parse_bytes(memory_limit) if memory_limit is not None else half_of_memory()
    with _limit_time(timeout), _limit_memory(memory):
        try:
            yield
        except MemoryError:
            raise QueryError(
                "The query needs more memory than it may use.",
                hint="Narrow it (a WHERE, a LIMIT), or allow more: --memory-limit 8GB.",
            ) from None


@contextlib.contextmanager
def _limit_time(timeout: float | None) -> Iterator[None]:
    if timeout is None:
        yield
        return
    timer = threading.Timer(timeout + _GRACE, _end, [timeout])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(seconds: float) -> None:
    click.echo(f"audit: The query was stopped: it took longer than {seconds:g} seconds.", err=True)
    sys.stderr.flush()
    os._exit(1)


@contextlib.contextmanager
def _limit_memory(memory: int) -> Iterator[None]:
    try:
        import resource

        with open("/proc/self/statm") as own:
            used = int(own.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        yield  # a system that does not say; DuckDB's own limit holds
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = used + memory + _RESERVED_BYTES + _PER_THREAD * (os.cpu_count() or 1)
    if before[1] != resource.RLIM_INFINITY:
        most = min(most, before[1])
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
