"""A loader that survives the death of its workers: for a run on this machine, and for a replay.

A worker that dies takes its batch with it, not the run: the loader is started again where it stopped. A batch at which
workers die twice is made sample by sample, each in a worker of its own, and a sample that kills it is lost alone.

With `watch`, a worker that hangs or was stopped is killed (see watchdog.py). A sample at which it hung is not made again.
"""

from __future__ import annotations

import errno
import os
import pickle
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from audit.engines.watchdog import Stall, Watchdog, WatchOptions, allow_interrupt, end_workers
from audit.engines.workers import defer_worker_death, is_worker_death, silence_broken_pipe
from audit.errors import PipelineError
from audit.records import STALL_ERROR

#: What is asked for: indices of samples, or anything else that the dataset's `__getitems__` takes.
Keys = Sequence[Any] | np.ndarray[Any, Any]

_MOST_WORKERS = 8


class Batches:
    """Keys cut into batches, made one at a time: a million of them take no memory."""

    def __init__(self, keys: Keys, size: int) -> None:
        self.keys = keys
        self.size = size

    def __len__(self) -> int:
        return -(-len(self.keys) // self.size)

    def __iter__(self) -> Iterator[list[Any]]:
        for start in range(0, len(self.keys), self.size):
            part = self.keys[start : start + self.size]
            yield part.tolist() if isinstance(part, np.ndarray) else list(part)


class ResilientLoader:
    """Gives what a dataset's `__getitems__` makes of each batch of keys, in order."""

    def __init__(
        self,
        dataset: Any,
        *,
        lost: Callable[[Any], Any],
        workers: int | None = None,
        start_method: str | None = None,
        pin_memory: bool = False,
        watch: WatchOptions | None = None,
        before_workers: Callable[[], None] = lambda: None,
    ) -> None:
        self._dataset = dataset
        #: What stands for the batch of one key whose worker died.
        self._lost = lost
        self._workers = workers
        self._start_method = start_method
        self._pin_memory = pin_memory
        self._watch = watch
        #: Called before workers are started.
        self._before_workers = before_workers
        #: Why the last iterator was ended, where its watchdog did it.
        self._stall: Stall | None = None
        #: Samples whose worker was stopped from outside once: they are made again.
        self._tried_again: set[int] = set()

    def worker_count(self, batches: int) -> int:
        """Return how many workers make so many batches."""
        chosen = min(os.cpu_count() or 1, _MOST_WORKERS) if self._workers is None else self._workers
        return min(chosen, batches)  # further workers would have nothing to do

    def batches(self, keys: Keys, size: int) -> Generator[Any, None, None]:
        """Yield every batch in order, through the deaths of workers. To be closed: it holds workers and signal handlers."""
        stuck = 0
        while len(keys):
            received = 0
            try:
                with closing(self._start(Batches(keys, size))) as started:
                    for made in started:
                        received += 1
                        with defer_worker_death():
                            yield made
                return
            except Exception as error:
                if not is_worker_death(error):
                    raise
                keys = keys[received * size :]
                stuck = stuck + 1 if received == 0 else 1
                if self._settle_stall():
                    stuck = 0
                if stuck >= 2:
                    for (key,) in Batches(keys[:size], 1):
                        yield self.make_alone(key)
                    keys, stuck = keys[size:], 0

    def make_alone(self, key: Any) -> Any:
        """Return the batch of one key, made in a worker of its own."""
        made = self.load_one_batch([key], workers=1)
        return made if made is not None else self._lost(key)

    def load_one_batch(self, keys: Keys, *, workers: int | None = None) -> Any:
        """Return all keys as one batch; None where its worker died."""
        try:
            with closing(self._start(Batches(keys, len(keys)), workers)) as started:
                return next(started)
        except Exception as error:
            if not is_worker_death(error):
                raise
            self._settle_stall()
            return None

    def _settle_stall(self) -> bool:
        """Give up the sample at which a worker hung; False where none did, or where it is to be tried again."""
        stall, self._stall = self._stall, None
        if stall is None or stall.index is None or self._watch is None:
            return False
        if stall.was_stopped and stall.index not in self._tried_again:
            self._tried_again.add(stall.index)
        else:
            self._dataset.give_up(stall.index, stall.stage or "worker", STALL_ERROR)
        return True

    def _start(self, batches: Batches, workers: int | None = None) -> Generator[Any, None, None]:
        """Yield what an iterator of a loader gives, under a watchdog; its workers end with it."""
        iterator = self._make_iterator(batches, workers)
        if self._watch is None:
            yield from iterator
            return
        processes = getattr(iterator, "_workers", ())
        with ExitStack() as stack:
            stack.callback(end_workers, iterator)
            if not processes:
                stack.enter_context(allow_interrupt(self._watch.activity, self._watch.limit))
            watchdog = stack.enter_context(Watchdog(self._watch, processes))
            try:
                yield from _watch_iterator(iterator, watchdog)
            finally:
                self._stall = watchdog.stall

    def _make_iterator(self, batches: Batches, workers: int | None = None) -> Iterator[Any]:
        """Return the iterator of a loader; raise an error that says so if a pipeline cannot be sent to its workers."""
        try:
            return iter(self._loader(batches, self.worker_count(len(batches)) if workers is None else workers))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if "pickle" not in str(error).lower():
                raise
            raise PipelineError(
                f"The pipeline cannot be sent to worker processes that are not forked: {error}",
                hint="Name functions and classes instead of using lambdas, or give --start-method fork or --workers 0.",
            ) from error
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            _drop_traceback(error)
            raise PipelineError(
                "The worker processes cannot be started: shared memory (/dev/shm) is full.",
                hint="Free space there, make it larger (docker run --shm-size=1g), or give --workers 0.",
            ) from None

    def _loader(self, batches: Batches, workers: int) -> DataLoader[Any]:
        if workers:
            self._before_workers()
        return DataLoader(
            self._dataset,
            batch_sampler=batches,
            num_workers=workers,
            collate_fn=_as_is,
            worker_init_fn=silence_broken_pipe,
            multiprocessing_context=self._start_method if workers else None,
            pin_memory=self._pin_memory,
        )


def _watch_iterator(iterator: Iterator[Any], watchdog: Watchdog) -> Iterator[Any]:
    while True:
        with watchdog.note_waiting():
            try:
                made = next(iterator)
            except StopIteration:
                return
        yield made


def _drop_traceback(error: OSError) -> None:
    """Let go of what an error holds: an iterator of torch's that is half made complains when it is deleted."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        error.__traceback__ = None
    finally:
        sys.unraisablehook = before


def _as_is(made: Any) -> Any:
    """Return a batch as it is: the collate function of a loader whose dataset makes whole batches."""
    return made
