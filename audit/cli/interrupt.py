"""Handle Ctrl-C while DuckDB computes: the query runs in another thread, so the main thread can receive signals."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

_PATIENCE = 5.0


class InterruptibleQuery(Protocol):
    """A query that can be interrupted, and may have a limit of its own."""

    timeout: float | None

    def interrupt(self) -> None: ...


def run_interruptible(answer: InterruptibleQuery, action: Callable[[], None]) -> None:
    """Run an action on an answer in another thread; on KeyboardInterrupt stop the query and raise it here.

    The answer stops itself after its timeout. A query that does not obey ends with the process: DuckDB may ignore it.
    """
    failed: list[BaseException] = []

    def work() -> None:
        try:
            action()
        except BaseException as error:
            failed.append(error)

    # A daemon: a query that does not stop must not keep the command from ending.
    thread = threading.Thread(target=work, name="audit-query", daemon=True)
    thread.start()
    try:
        limit = math.inf if answer.timeout is None else time.monotonic() + answer.timeout + _PATIENCE
        while thread.is_alive():
            thread.join(0.2)
            if time.monotonic() > limit:
                _end_process(f"The query was stopped: it took longer than {answer.timeout:g} seconds.")
    except KeyboardInterrupt:
        answer.interrupt()
        thread.join(_PATIENCE)
        raise
    if failed:
        raise failed[0]


def _end_process(sentence: str) -> None:
    """End at once: closing the connection would wait for the query."""
    sys.stdout.flush()
    sys.stderr.write(f"audit: {sentence}\n")
    sys.stderr.flush()
    os._exit(1)
