"""A loader that survives the death of its workers: for a run on this machine, and for a replay.

A worker that dies takes its batch with it, not the run: the loader is started again where it stopped. A batch at which
workers die twice is made sample by sample, each in a worker of its own, and a sample that kills it is lost alone.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from audit.engines.workers import defer_worker_death, is_worker_death, silence_broken_pipe
from audit.errors import PipelineError

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
    ) -> None:
        self._dataset = dataset
        #: What stands for the batch of one key whose worker died.
        self._lost = lost
        self._workers = workers
        self._start_method = start_method
        self._pin_memory = pin_memory

    def worker_count(self, batches: int) -> int:
        """Return how many workers make so many batches."""
        return self._workers if self._workers is not None else min(os.cpu_count() or 1, _MOST_WORKERS, batches)

    def batches(self, keys: Keys, size: int) -> Iterator[Any]:
        """Yield every batch in order, through the deaths of workers."""
        stuck = 0
        while len(keys):
            received = 0
            try:
                for made in self._start(Batches(keys, size)):
                    received += 1
                    with defer_worker_death():
                        yield made
                return
            except Exception as error:
                if not is_worker_death(error):
                    raise
                keys = keys[received * size :]
                stuck = stuck + 1 if received == 0 else 1
                if stuck >= 2:
                    for (key,) in Batches(keys[:size], 1):
                        yield self.make_alone(key)
                    keys, stuck = keys[size:], 0

    def make_alone(self, key: Any) -> Any:
        """Return the batch of one key, made in a worker of its own."""
        made = self.first([key], workers=1)
        return made if made is not None else self._lost(key)

    def first(self, keys: Keys, *, workers: int | None = None) -> Any:
        """Return all keys as one batch; None where its worker died."""
        try:
            return next(self._start(Batches(keys, len(keys)), workers))
        except Exception as error:
            if not is_worker_death(error):
                raise
            return None

    def _start(self, batches: Batches, workers: int | None = None) -> Iterator[Any]:
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

    def _loader(self, batches: Batches, workers: int) -> DataLoader[Any]:
        return DataLoader(
            self._dataset,
            batch_sampler=batches,
            num_workers=workers,
            collate_fn=_as_is,
            worker_init_fn=silence_broken_pipe,
            multiprocessing_context=self._start_method if workers else None,
            pin_memory=self._pin_memory,
        )


def _as_is(made: Any) -> Any:
    """Return a batch as it is: the collate function of a loader whose dataset makes whole batches."""
    return made
