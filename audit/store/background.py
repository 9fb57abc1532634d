"""A bounded queue between the loop and the disk: the loop waits when it is full, nothing is dropped."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from audit.records import Run, Status
from audit.store.writer import RunWriter

Work = Callable[[RunWriter], None]

#: How many bytes of rows may wait to be written before the loop waits too.
DEFAULT_LIMIT = 64 * 2**20


class BackgroundWriter:
    """Runs the writer in a thread. The first failure is kept in `error`; later work is discarded."""

    def __init__(self, writer: RunWriter, limit: int = DEFAULT_LIMIT) -> None:
        self._writer = writer
        self._limit = limit
        self._waiting: deque[tuple[Work, int]] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()
        self.error: Exception | None = None
        # A daemon, so that an abandoned recording cannot keep the interpreter from ending.
        self._thread = threading.Thread(target=self._drain, name="audit-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Work, size: int = 0) -> None:
        """Hand over one piece of work of about `size` bytes; waits while too much is waiting already."""
        with self._changed:
            while self._waiting and self._bytes + size > self._limit and self.error is None:
                self._changed.wait()
            self._waiting.append((work, size))
            self._bytes += size
            self._changed.notify_all()

    def finish(self, status: Status) -> Run:
        """Wait until all is written, then end the run. Raises what the thread could not write."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        if self.error is not None:
            self._writer.abandon()
            raise self.error
        try:
            return self._writer.finish(status)
        finally:
            self._writer.abandon()

    @property
    def run(self) -> Run:
        """The run's row as it stands."""
        return self._writer.run

    def _drain(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    return
                work, size = self._waiting.popleft()
            try:
                if self.error is None:
                    work(self._writer)
            except Exception as error:
                self.error = error
            with self._changed:
                self._bytes -= size
                self._changed.notify_all()
