"""A dataset that yields what it always yielded, for loops that build their own loader.

Its rows go straight to the recording, through a pipe when the item was made in a worker. Which batch an item became part
of is not known here; predictions find their samples by the digest of what the model was given.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch.multiprocessing
from torch.utils.data import get_worker_info

from audit.errors import RecordingError
from audit.recorders.envelope import RecordedBatch
from audit.recorders.files.origin import Origin
from audit.recorders.loop.fork_safety import DELIVERY_LOCK
from audit.recorders.loop.recorded_dataset import StandIn, fetches_batches, record_item, whole_batch
from audit.recorders.shared_memory import SentCopy
from audit.recorders.visit.item_recorder import ItemRecorder

_OPEN, _EPOCH = 0, 1


class ItemReceiver(Protocol):
    """What a recording does with the items of a dataset."""

    def receive_items(self, key: int, envelope: RecordedBatch) -> None: ...
    def pause_tracking(self) -> contextlib.AbstractContextManager[None]: ...


class Channel:
    """Envelopes from any process to the one that records."""

    def __init__(self, receiver: ItemReceiver) -> None:
        #: Whether the recording is open, and its epoch, in memory that all workers share.
        self._shared = torch.tensor([1, 0], dtype=torch.int64)
        try:
            # The system's own start method would not do: a pipe made for fork cannot be handed to a spawned worker.
            self._pipe = torch.multiprocessing.get_context("spawn").SimpleQueue()
            self._shared.share_memory_()  # type: ignore[no-untyped-call]
        except (OSError, RuntimeError) as error:
            # Without it a worker would not know the epoch of its samples, and write another one.
            raise RecordingError(
                f"run.dataset needs shared memory, and none is left ({error}).",
                hint="Free some in /dev/shm, or record the loader with run.loader instead.",
            ) from error
        #: None in a worker.
        self._receiver: ItemReceiver | None = receiver
        self._busy = False
        self._idle = threading.Condition()
        self._thread: threading.Thread | None = threading.Thread(target=self._drain, name="audit-channel", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether anybody still takes what is sent."""
        return bool(self._shared[_OPEN])

    def set_epoch(self, number: int) -> None:
        """Count items that are made from now on to this epoch."""
        self._shared[_EPOCH] = number

    def send(self, envelope: RecordedBatch) -> None:
        """Hand over an envelope; in a worker it is written to the pipe before the item is returned."""
        if not self.is_open:
            return
        envelope.made_in_epoch = int(self._shared[_EPOCH])
        if get_worker_info() is None and self._receiver is not None:
            self._receiver.receive_items(id(self), envelope)
            return
        # By value: a shared-memory tensor would vanish with a worker that ends right after.
        # A recording that has ended meanwhile takes nothing; that is not an error of the user's loop.
        with contextlib.suppress(OSError, ValueError):
            self._pipe.put(SentCopy(envelope))

    def pause_tracking(self) -> contextlib.AbstractContextManager[None]:
        """Stop tracking tensors while an item is made: what is done to them then is not a part of the loop."""
        return self._receiver.pause_tracking() if self._receiver is not None else contextlib.nullcontext()

    def wait_for_delivery(self) -> None:
        """Wait until everything that was sent so far has been delivered."""
        with self._idle:
            while self._thread is not None and (self._busy or not self._pipe.empty()) and self._thread.is_alive():
                self._idle.wait(0.01)

    def close(self) -> None:
        """Take what is on its way, then nothing more."""
        if self._thread is None:
            return
        self._shared[_OPEN] = 0
        self._pipe.put(None)
        self._thread.join(timeout=30)
        self._thread = None
        # A worker that is still writing must not wait for a reader without end. When all of them have ended so does this.
        threading.Thread(target=_discard, args=(self._pipe,), name="audit-discard", daemon=True).start()
        # Nor is it handed to workers that start later.
        self._pipe = None  # type: ignore[assignment]

    def _drain(self) -> None:
        reader = self._pipe._reader  # type: ignore[attr-defined]
        while True:
            reader.poll(None)
            with self._idle:
                self._busy = True
            try:
                envelope = self._pipe.get()
                if envelope is None:
                    return
                with DELIVERY_LOCK:
                    assert self._receiver is not None
                    self._receiver.receive_items(id(self), envelope)
            finally:
                with self._idle:
                    self._busy = False
                    self._idle.notify_all()

    def __getstate__(self) -> dict[str, Any]:
        return {"_pipe": self._pipe, "_shared": self._shared, "_receiver": None, "_thread": None}


def _discard(pipe: Any) -> None:
    with contextlib.suppress(EOFError, OSError):
        # Without our own end the pipe ends with the last worker that has one.
        pipe._writer.close()
        while True:
            pipe.get()


class RecordedDatasetProxy(StandIn):
    """Stands in for a dataset; everything but taking items is the dataset's own."""

    def __init__(self, recorder: ItemRecorder, channel: Channel) -> None:
        super().__init__(recorder)
        object.__setattr__(self, "_audit_channel", channel)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._audit_recorder, self._audit_channel))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        recorder = self._audit_recorder
        memo[id(recorder.level)] = recorder.level
        return type(self)(copy.deepcopy(recorder, memo), self._audit_channel)

    def __add__(self, other: Any) -> Any:
        return type(self._audit_recorder.dataset).__add__(self, other)

    def __getitem__(self, index: Any) -> Any:
        recorder = self._audit_recorder
        if isinstance(index, (slice, list)) or not self._audit_channel.is_open:
            # Not one sample, and so not a visit.
            return recorder.dataset[index]
        with self._send_items():
            return self._make_item(index)

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        """Make the samples of a batch, as a loader asks for them, and send them together."""
        recorder = self._audit_recorder
        own = fetches_batches(recorder.dataset)
        if not self._audit_channel.is_open:
            return recorder.dataset.__getitems__(indices) if own else [recorder.dataset[index] for index in indices]
        with self._send_items():
            if own:
                return whole_batch(recorder, indices)
            with recorder.sequence():
                return [self._make_item(index) for index in indices]

    def _make_item(self, index: Any) -> Any:
        recorder = self._audit_recorder
        try:
            return record_item(recorder, index)
        except IndexError:
            # Iterating by index until there is no more: the end is not a sample.
            if isinstance(index, int) and hasattr(recorder.dataset, "__len__") and index >= len(recorder.dataset):
                recorder.forget_last()
            raise

    @contextlib.contextmanager
    def _send_items(self) -> Iterator[None]:
        recorder = self._audit_recorder
        recorder.clear()
        try:
            with self._audit_channel.pause_tracking():
                yield
        finally:
            if recorder.has_rows:
                self._audit_channel.send(recorder.take_batch(None, indexed=True, by_loader=False))


class RecordedIterableProxy(RecordedDatasetProxy):
    """The same for an iterable dataset. The n-th item of worker w of W has the index n·W + w, in every run the same."""

    def __iter__(self) -> Iterator[Any]:
        recorder = self._audit_recorder
        worker = get_worker_info()
        index, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        recorder.begin_stream()
        items = iter(recorder.dataset)
        while True:
            if not self._audit_channel.is_open:
                yield from items
                return
            try:
                with self._send_items():
                    item = self._next(items, index)
            except StopIteration:
                return
            yield item
            index += stride

    def _next(self, items: Iterator[Any], index: int) -> Any:
        try:
            return self._audit_recorder.record(index, items.__next__, Origin(f"dataset://{index}", is_streamed=True))
        except StopIteration:
            self._audit_recorder.forget_last()
            raise
