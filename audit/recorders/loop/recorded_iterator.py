"""Iterators of a recorded loader: each batch is given to the recording, then to the loop."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch._utils import ExceptionWrapper

from audit.recorders.envelope import RecordedBatch

if TYPE_CHECKING:
    from audit.recorders.loop.loader_recording import Iteration, LoaderRecording, Receiver


class RecordedIterator:
    """Takes each batch out of its envelope. No generator: a StopIteration from a dataset must end it as it always did."""

    def __init__(self, loader: LoaderRecording, receiver: Receiver, iterator: Any, iteration: Iteration | None) -> None:
        self._loader = loader
        self._receiver = receiver
        self._iterator = iterator
        self._iteration = iteration

    def begin_pass(self, iteration: Iteration | None) -> None:
        """Count the next batches to this pass."""
        self._iteration = iteration

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._iterator.__class__

    def __iter__(self) -> RecordedIterator:
        return self

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_receiver", "_iterator", "_iteration"):
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __next__(self) -> Any:
        receiver = self._receiver
        try:
            # What is computed here is not an operation of the loop.
            with receiver.pause_tracking():
                return self._open(self._fetch())
        except StopIteration:
            # Of the loader, or of the dataset: the loop cannot distinguish them, and takes either for the end.
            if self._iteration is not None:
                receiver.finish_pass(self._loader, self._iteration)
            raise

    def _fetch(self) -> RecordedBatch:
        try:
            envelope: RecordedBatch = next(self._iterator)
            return envelope
        except StopIteration:
            raise
        except BaseException as error:
            self._receiver.note_failure(error)
            raise

    def _open(self, envelope: RecordedBatch) -> Any:
        if self._iteration is not None:
            self._receiver.receive(self._loader, envelope, self._iteration)
        if envelope.error is not None:
            if isinstance(envelope.error, ExceptionWrapper):
                envelope.error.reraise()  # type: ignore[no-untyped-call]
            raise envelope.error
        return envelope.data


class OwnIteration:
    """A pass over a loader whose class has an `__iter__` of its own: timm's, accelerate's, one that moves batches.

    It may begin to fetch when it likes, and change what it fetched, so the envelopes are opened below it: whenever its
    code runs, the loader makes recorded iterators.
    """

    def __init__(self, loader: LoaderRecording, receiver: Receiver, iteration: Iteration | None) -> None:
        self._loader = loader
        self._receiver = receiver
        self._iteration = iteration
        self._is_recorded = loader.continue_iterator(iteration)
        with self._replace_iterator():
            self._iterator = iter(loader.loader)

    def _replace_iterator(self) -> contextlib.AbstractContextManager[None]:
        return self._loader.replace_attributes(_get_iterator=self._make)

    def _make(self) -> Any:
        self._is_recorded = True
        return self._loader.record_base_iterator(self._iteration)

    def __iter__(self) -> OwnIteration:
        return self

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_receiver", "_iterator", "_iteration", "_is_recorded"):
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __next__(self) -> Any:
        with self._replace_iterator():
            batch = next(self._iterator)
        if not self._is_recorded and self._iteration is not None:
            self._receiver.note_unrecorded_iterator(self._loader)
        return batch
