"""Ctrl-C while DuckDB computes: it looks at signals only now and then, so the main thread must be free to hear them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

_PATIENCE = 5.0


class Interruptible(Protocol):
    """What can be told to stop."""

    def interrupt(self) -> None: ...


def interruptible(answer: Interruptible, action: Callable[[], None]) -> None:
    """Do something with an answer in another thread; KeyboardInterrupt stops the query and is raised here."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            action()
        except BaseException as error:
            failed.append(error)

    # A daemon: a query that does not stop when it is told to must not keep the command from ending.
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
