"""Watches the processes that make samples, and ends one that hangs or was stopped.

A loader waits for a worker that hangs for as long as it takes. A thread reads what the workers are doing (see
recorders/activity.py), tells when a sample takes long, and kills the worker when it takes longer than allowed. Killing is
all that helps: a worker that is stopped, or stuck in C code, hears of nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from audit.recorders.activity import Activity, CurrentSample
from audit.records import STALL_ERROR

#: After so many seconds, progress says what is waited for.
_NOTICE = 30.0
#: Workers that make no sample may be starting: so many seconds are waited for them at least.
_START = 120.0


@dataclass(frozen=True, slots=True)
class Stall:
    """A worker that was killed because nothing came from it."""

    #: The sample that it was making; None if it was making none.
    index: int | None
    stage: str | None
    seconds: float
    #: Whether the process had been stopped (SIGSTOP), which is not a fault of the sample.
    was_stopped: bool


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How long to wait for a sample, and what to call then."""

    activity: Activity
    limit: float
    #: Called with what is waited for, for a progress bar.
    tell: Callable[[str], None] = lambda _: None
    #: Called with what happened, once.
    note: Callable[[str], None] = lambda _: None


class Watchdog:
    """Watches the workers of one iterator of a loader, while its context is entered."""

    def __init__(self, options: WatchOptions, workers: Sequence[Any]) -> None:
        self._options = options
        self._workers = workers
        self._ended = threading.Event()
        self._waiting_since: float | None = None
        #: When the sample was begun that was interrupted last, and when that was.
        self._reported_begun: float | None = None
        self._interrupted_at = 0.0
        #: What was killed, and why.
        self.stall: Stall | None = None
        self._thread = threading.Thread(target=self._watch, name="audit-watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @contextlib.contextmanager
    def note_waiting(self) -> Iterator[None]:
        """Note that the loop waits for the next batch."""
        self._waiting_since = time.monotonic()
        try:
            yield
        finally:
            self._waiting_since = None

    def _watch(self) -> None:
        limit = self._options.limit
        while not self._ended.wait(min(1.0, limit / 10)):
            if self.stall is None:
                self._look()

    def _look(self) -> None:
        mine = {worker.pid for worker in self._workers} if self._workers else {os.getpid()}
        busy = [sample for sample in self._options.activity.current_samples() if sample.process in mine]
        longest = busy[0] if busy else None
        if longest is not None:
            self._judge(longest)
            return
        since = self._waiting_since
        if self._workers and since is not None and time.monotonic() - since >= self._options.limit:
            self._end_idle(time.monotonic() - since)

    def _judge(self, sample: CurrentSample) -> None:
        limit = self._options.limit
        if sample.seconds >= limit:
            self._give_up(sample)
        elif sample.seconds >= min(_NOTICE, limit / 2):
            self._options.tell(f"waiting for sample {sample.index}, stage {sample.stage}, {sample.seconds:.0f} s")

    def _give_up(self, sample: CurrentSample) -> None:
        if not self._workers:
            self._interrupt(sample)
            return
        stopped = is_stopped(sample.process)
        self.stall = Stall(sample.index, sample.stage, sample.seconds, stopped)
        what = "was stopped (SIGSTOP)" if stopped else "hung"
        self._options.note(
            f"A worker {what} for {sample.seconds:.0f} s at sample {sample.index}, stage {sample.stage}, and was ended."
        )
        _kill(sample.process)

    def _end_idle(self, seconds: float) -> None:
        """End workers when nothing comes and none is making a sample: one was stopped, or hangs before or after its samples."""
        alive = [worker for worker in self._workers if worker.is_alive()]
        stopped = [worker for worker in alive if is_stopped(worker.pid)]
        chosen = stopped or (alive if seconds >= _START else [])
        if chosen:
            self.stall = Stall(None, None, seconds, bool(stopped))
            self._options.note(f"No batch came for {seconds:.0f} s, so the worker {chosen[0].pid} was ended.")
            for worker in chosen:
                _kill(worker.pid)

    def _interrupt(self, sample: CurrentSample) -> None:
        """Interrupt a sample that is made in this process, without workers. C code may not react to the signal."""
        now = time.monotonic()
        if self._reported_begun == sample.begun:
            self._options.tell(f"waiting for sample {sample.index}, stage {sample.stage}, {sample.seconds:.0f} s")
            if now - self._interrupted_at < self._options.limit:
                return
        else:
            self._options.note(
                f"Sample {sample.index} has taken {sample.seconds:.0f} s in stage {sample.stage}. Without workers it can be "
                "stopped only when its code returns to Python; with --workers 1 audit would end its process."
            )
        # Again after the same time: whatever runs when the signal comes may catch the exception, and go on.
        self._reported_begun, self._interrupted_at = sample.begun, now
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)


@contextlib.contextmanager
def allow_interrupt(activity: Activity, limit: float) -> Iterator[None]:
    """Let a watchdog interrupt a sample that this process makes, by SIGALRM where it is not used already."""
    free = signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, signal.SIG_IGN, None)
    if threading.current_thread() is not threading.main_thread() or not free:
        yield
        return

    def interrupt(_: int, __: FrameType | None) -> None:
        here = [sample for sample in activity.current_samples() if sample.process == os.getpid()]
        # The sample may have ended between the signal and now.
        if here and here[0].seconds >= limit:
            raise TimeoutError(STALL_ERROR)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def is_stopped(process: int) -> bool:
    """Return whether a process was stopped by a signal, or by a debugger."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")


def end_workers(iterator: Any) -> None:
    """End the workers of a loader's iterator. One that is stopped would keep this process from ending."""
    workers = getattr(iterator, "_workers", ())
    if not workers:
        return
    # First as torch does it: from then on it takes no death of theirs for an error.
    iterator._shutdown_workers()
    for worker in workers:
        if worker.is_alive():
            _kill(worker.pid)
            worker.join()


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
