"""An error in the main thread, wherever that is: what torch's signal handler does when a worker has died."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raised_by_a_signal(message: str, reported: threading.Event, *, after: float) -> Iterator[None]:
    """After so many seconds RuntimeError(message) is raised; `reported` says that it was, or that all is over."""

    def tell(*_: object) -> None:
        reported.set()
        raise RuntimeError(message)

    before = signal.signal(signal.SIGUSR1, tell)
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        yield
    finally:
        timer.cancel()
        reported.set()
        signal.signal(signal.SIGUSR1, before)
