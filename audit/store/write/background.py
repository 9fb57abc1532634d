"""A bounded queue between the loop and the disk: the loop waits when it is full, nothing is dropped.

While nothing arrives, what has been gathered is still committed when it is due.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from audit.records import Run, Status
from audit.store.write.writer import RunWriter

Work = Callable[[RunWriter], None]

#: How many bytes of rows may wait to be written before the loop waits too.
DEFAULT_LIMIT = 64 * 2**20
#: How often the thread looks at the clock while nothing arrives, in seconds.
_TICK = 1.0
#: So much work waits for the next look at the clock. Whenever the thread works, it and the loop take the interpreter from each
#: other all the time, which costs more than to take in the rows of small batches.
_WOKEN_PIECES = 32
_WOKEN_BYTES = 2**20


class BackgroundWriter:
    """Runs the writer in a thread. The first failure is kept in `error`; later work is discarded.

    `guard` is held while the thread commits by the clock. `on_tick` is called about once a second while nothing arrives.
    """

    def __init__(
        self,
        writer: RunWriter,
        limit: int = DEFAULT_LIMIT,
        *,
        guard: AbstractContextManager[object] | None = None,
        on_tick: Callable[[], None] | None = None,
    ) -> None:
        self._writer = writer
        self._limit = limit
        self._guard = guard if guard is not None else nullcontext()
        self._on_tick = on_tick
        self._waiting: deque[tuple[Work, int]] = deque()
        self._bytes = 0
        self._status: Status | None = None
        lock = threading.Lock()
        #: Enough has come to wake the thread, or the end; and what waited has become less.
        self._arrived, self._done = threading.Condition(lock), threading.Condition(lock)
        self._ended = threading.Event()
        self.error: Exception | None = None
        # A daemon, so that an abandoned recording cannot keep the interpreter from ending.
        self._thread = threading.Thread(target=self._drain, name="audit-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Work, size: int = 0) -> None:
        """Hand over one piece of work of about `size` bytes; waits while too much is waiting already."""
        with self._arrived:
            while self._bytes and self._bytes + size > self._limit and self.error is None:
                self._arrived.notify()
                self._done.wait()
            self._waiting.append((work, size))
            self._bytes += size
            if len(self._waiting) >= _WOKEN_PIECES or self._bytes >= min(_WOKEN_BYTES, self._limit):
                self._arrived.notify()

    def finish(self, status: Status) -> Run:
        """Wait until all is written and the run is ended. Raises what the thread could not write."""
        with self._arrived:
            self._status = status
            self._arrived.notify()
        try:
            self._ended.wait()
        except BaseException:
            # Ctrl-C, or a handler of torch's that raises where a worker has died: the run is ended all the same.
            self._ended.wait()
            raise
        # Not before: `join` that is interrupted takes a thread for ended that is not.
        self._thread.join()
        if self.error is not None:
            raise self.error
        return self._writer.run

    @property
    def run(self) -> Run:
        """The run's row as it stands."""
        return self._writer.run

    def _drain(self) -> None:
        try:
            while (taken := self._next()) is not None:
                work, size = taken
                self._try(work)
                with self._done:
                    self._bytes -= size
                    self._done.notify_all()
            if self.error is None:
                self._try(lambda writer: writer.finish(self._status or "failed"))
            else:
                self._writer.abandon(self.error)
        finally:
            self._ended.set()

    def _next(self) -> tuple[Work, int] | None:
        """Return the next piece of work; None when there will be no more."""
        with self._arrived:
            while not self._waiting and self._status is None:
                if not self._arrived.wait(_TICK) and not self._waiting:
                    return self._tick, 0
            return self._waiting.popleft() if self._waiting else None

    def _tick(self, writer: RunWriter) -> None:
        """Commit what is due: nothing has arrived for a while."""
        if writer.is_due():
            with self._guard:
                writer.flush()
        if self._on_tick is not None:
            self._on_tick()

    def _try(self, work: Work | Callable[[RunWriter], Run]) -> None:
        try:
            if self.error is None:
                work(self._writer)
        except Exception as error:
            self.error = error
