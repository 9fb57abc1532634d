"""Run long queries once, in the background, and cache their answers.

A commit never changes, so an answer about one commit of a run stays correct for as
long as the server runs. A page waits for it a moment; if it takes longer, the page goes out without and asks
for that piece again. The number of kept answers is bounded; the oldest unused one goes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any, TypeVar

T = TypeVar("T")

_MOST_KEPT = 300


class Answers:
    """Answers by question; a question that failed is asked again the next time."""

    def __init__(self, workers: int = 2) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="audit-answers")
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Future[Any]] = OrderedDict()

    def ask(self, question: Hashable, answer: Callable[[], T]) -> Future[T]:
        """Return the cached or pending answer; start computing it if it is new."""
        with self._lock:
            known = self._kept.get(question)
            if known is not None and not (known.done() and known.exception() is not None):
                self._kept.move_to_end(question)
                return known
            begun: Future[T] = self._pool.submit(answer)
            self._kept[question] = begun
            while len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
            return begun

    def ask_within(self, seconds: float | None, question: Hashable, answer: Callable[[], T]) -> T | None:
        """Return the answer, or None if it is not ready within `seconds`; None for `seconds` waits without limit."""
        try:
            return self.ask(question, answer).result(timeout=seconds)
        except NotYet:
            return None

    def close(self) -> None:
        """Cancel the computations that have not started."""
        self._pool.shutdown(wait=False, cancel_futures=True)
