"""Worker processes of a loader: how to recognise their death, when it is reported, and what they print when they are ended."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


def is_worker_death(error: BaseException) -> bool:
    """Return whether a loader raised this because a worker is gone.

    One that dies while it sends a batch leaves a broken connection, and the error does not mention workers.
    """
    if isinstance(error, RuntimeError):
        return "DataLoader worker" in str(error)
    return isinstance(error, (ConnectionError, EOFError, FileNotFoundError))


@contextmanager
def defer_worker_death() -> Iterator[None]:
    """Report deaths of workers when this ends, and not in the middle of what is done inside.

    torch raises from a signal handler, wherever the main thread happens to be: while rows are written, or in the user's code.
    """
    handler: Any = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        received.append(number)

    signal.signal(signal.SIGCHLD, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)
    if received:
        handler(signal.SIGCHLD, None)


def silence_broken_pipe(_: int) -> None:
    """Prepare a worker: a batch that is not taken any more, because the run was interrupted, is not an error."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, (ConnectionError, EOFError)):
            before(kind, error, trace)

    sys.excepthook = hook
