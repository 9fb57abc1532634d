"""Handle Ctrl-C while DuckDB computes: the query runs in another thread, so the main thread can receive signals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

_PATIENCE = 5.0


class Interruptible(Protocol):
    """A query that can be interrupted."""

    def interrupt(self) -> None: ...


def interruptible(answer: Interruptible, action: Callable[[], None]) -> None:
    """Run an action on an answer in another thread; on KeyboardInterrupt stop the query and raise it here."""
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
        while thread.is_alive():
            thread.join(0.2)
    except KeyboardInterrupt:
        answer.interrupt()
        thread.join(_PATIENCE)
        raise
    if failed:
        raise failed[0]
