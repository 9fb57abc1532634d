"""A DataLoader that yields what it always yielded, and leaves rows behind.

The user's own loader does the work: while its iterator is being made, its dataset and its collate function are
replaced by recording ones, and put back at once. Samplers, generators, workers, prefetching and pinning are its own,
so that every random number is drawn where it was drawn before. The rows travel beside each batch as one block of bytes.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from audit.recorders.capture_level import CaptureLevel
from audit.recorders.envelope import RecordedBatch
from audit.recorders.loop.expected_draws import Draws
from audit.recorders.loop.fetching import RecordedIterable, RecordedMap, RecordingCollate
from audit.recorders.loop.pickling import why_not_picklable
from audit.recorders.model.batch_tracker import BatchTracker
from audit.recorders.randomness.visit_randomness import WatchedRandomness
from audit.recorders.stages.discover import Pipeline
from audit.recorders.visit.item_recorder import ItemRecorder, LabelFinder
from audit.recorders.visit.make import VisitMaker

_MOST_LEVELS = 20


@dataclass(slots=True, eq=False, weakref_slot=True)
class Iteration:
    """One pass over a loader."""

    epoch: int
    #: Items of an iterable dataset so far: their order is their index.
    arrived: int = 0
    #: What it is to draw, where that is known.
    draws: Draws | None = None


class Receiver(Protocol):
    """What a recording does with the batches of a loader."""

    tracker: BatchTracker

    def begin(self, loader: RecordedLoader) -> Iteration | None: ...
    def receive(self, loader: RecordedLoader, envelope: RecordedBatch, iteration: Iteration) -> None: ...
    def ended(self, loader: RecordedLoader, iteration: Iteration) -> None: ...
    def broke(self, error: BaseException) -> None: ...
    def unrecordable(self, error: BaseException) -> None: ...
    def unheard(self, loader: RecordedLoader) -> None: ...


class RecordedLoader:
    """Stands in for the user's loader; everything but iterating it is the loader's own."""

    def __init__(
        self, loader: DataLoader[Any], pipeline: Pipeline, level: CaptureLevel, receiver: Receiver, label: LabelFinder
    ) -> None:
        self._audit_loader = loader
        self._audit_base = base_of(loader)
        self._audit_receiver = receiver
        #: A loader that can be saved, such as torchdata's, keeps its iterator for that: then ours must be the one it keeps.
        self._audit_keeps_state = callable(getattr(type(self._audit_base), "state_dict", None))
        #: With persistent workers a loader keeps its iterator; ours makes envelopes, the user's own must not.
        self._audit_kept: Any = None
        dataset = self._audit_base.dataset
        iterable = isinstance(dataset, IterableDataset)
        maker = VisitMaker(dataset, pipeline, WatchedRandomness(dataset))
        recorder = ItemRecorder(maker, level, label=label)
        self._audit_dataset = RecordedIterable(recorder) if iterable else RecordedMap(recorder)
        self._audit_collate = RecordingCollate(self._audit_base.collate_fn, recorder, not iterable)

    @property
    def _audit_iterator(self) -> Any:
        """The iterator that the loader keeps while it works for this recording."""
        return self._audit_base.__dict__.get("_iterator") if self._audit_keeps_state else self._audit_kept

    @_audit_iterator.setter
    def _audit_iterator(self, value: Any) -> None:
        if self._audit_keeps_state:
            self._audit_base.__dict__["_iterator"] = value
        else:
            self._audit_kept = value

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._audit_loader.__class__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_audit_"):
            raise AttributeError(name)
        if name == "_iterator":
            # Whoever ends persistent workers by it means those that work for this loop.
            return self._audit_iterator
        if name == "state_dict" and self._audit_keeps_state:
            return self._state_dict
        return getattr(self._audit_loader, name)

    def _state_dict(self, *args: Any, **options: Any) -> Any:
        """The loader's own `state_dict`; an iterator that it makes for that is the one it will iterate."""
        base = self._audit_base
        with self._holding(_get_iterator=lambda: self._recorded(lambda: type(base)._get_iterator(base), None)):
            return self._audit_loader.state_dict(*args, **options)  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_audit_"):
            object.__setattr__(self, name, value)
        elif name == "_iterator":
            self._audit_iterator = value
        else:
            setattr(self._audit_loader, name, value)

    def __len__(self) -> int:
        return len(self._audit_loader)

    def __repr__(self) -> str:
        return f"<recorded {self._audit_loader!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy, in this process or another, is the user's loader: a recording cannot be in two places.
        return (_itself, (self._audit_loader,))

    def __iter__(self) -> Any:
        iteration = self._audit_receiver.begin(self)
        if iteration is None and self._audit_iterator is None:
            return iter(self._audit_loader)
        if type(self._audit_loader).__iter__ is not DataLoader.__iter__:
            return OwnIteration(self, iteration)
        return self._recorded(lambda: iter(self._audit_loader), iteration)

    def _recorded(self, make: Callable[[], Any], iteration: Iteration | None) -> Any:
        """The iterator that `make` makes, recorded."""
        try:
            with self._recording(), self._audit_receiver.tracker.paused():
                iterator = make()
        except Exception as error:
            return self._unpicklable(error, make)
        return RecordedIterator(self, iterator, iteration)

    def _audit_keeps_iterator(self) -> bool:
        """Whether the next pass goes on with an iterator that is there: with persistent workers, or after `state_dict`."""
        made_for_state = self._audit_base.__dict__.get("_initial_iter_for_state_dict", False)
        goes_on = not self._audit_keeps_state or self._audit_base.persistent_workers or made_for_state
        return goes_on and type(self._audit_iterator) is RecordedIterator

    @contextlib.contextmanager
    def _recording(self) -> Iterator[None]:
        with self._holding(dataset=self._audit_dataset, collate_fn=self._audit_collate):
            yield

    @contextlib.contextmanager
    def _holding(self, **ours: Any) -> Iterator[None]:
        """The loader's attributes refuse to be set once it is made, so its dictionary is asked."""
        attributes = self._audit_base.__dict__
        if not self._audit_keeps_state:
            ours["_iterator"] = self._audit_iterator
        before = {name: attributes[name] for name in ours if name in attributes}
        attributes.update(ours)
        try:
            yield
        finally:
            self._audit_kept = attributes.get("_iterator")
            for name in ours:
                attributes.pop(name, None)
            attributes.update(before)

    def _unpicklable(self, error: Exception, make: Callable[[], Any]) -> Any:
        """Workers could not be started. If that is our doing, the loop goes on unrecorded; else it fails, with a reason."""
        loader = self._audit_base
        method = getattr(loader.multiprocessing_context, "_name", None) or _start_method()
        if not loader.num_workers or method == "fork":
            raise error
        self._audit_iterator = None
        reason = why_not_picklable(loader)
        if reason is not None:
            raise reason from error
        self._audit_receiver.unrecordable(error)
        return make()


def _start_method() -> str | None:
    import multiprocessing

    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_context().get_start_method()


def base_of(loader: Any) -> Any:
    """The DataLoader that fetches; `loader` itself where it holds no other.

    accelerate's loaders hold one and answer for it. timm's PrefetchLoader and webdataset's WebLoader are no DataLoader
    themselves, and hold one in an attribute or in a list.
    """
    for _ in range(_MOST_LEVELS):
        held = _held_loader(loader)
        if held is None:
            break
        loader = held
    return loader


def _held_loader(loader: Any) -> Any:
    attributes = getattr(loader, "__dict__", {})
    if isinstance(loader, DataLoader):
        base = attributes.get("base_dataloader")
        return base if isinstance(base, DataLoader) else None
    if not hasattr(type(loader), "__iter__"):
        return None
    found: dict[int, Any] = {}
    for value in attributes.values():
        for part in value if isinstance(value, (list, tuple)) else (value,):
            inner = part if isinstance(part, DataLoader) else None
            if inner is None and isinstance(part, type(loader)) and part is not loader:
                inner = part
            if inner is not None:
                found[id(inner)] = inner
    # Of several nobody knows which of them gives the batches.
    return next(iter(found.values())) if len(found) == 1 else None


def _itself(loader: Any) -> Any:
    return loader


def being_iterated(loader: DataLoader[Any]) -> bool:
    """Whether an iterator of this loader is under way: what it yields cannot be recorded any more."""
    if getattr(loader, "_iterator", None) is not None:
        return True
    for holder in gc.get_referrers(loader._index_sampler):
        state = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
        is_iterator = isinstance(holder, _BaseDataLoaderIter) or "_sampler_iter" in state
        if is_iterator and state.get("_index_sampler") is loader._index_sampler and state.get("_num_yielded"):
            return True
    return False


class RecordedIterator:
    """Takes each batch out of its envelope. No generator: a StopIteration from a dataset must end it as it always did."""

    def __init__(self, loader: RecordedLoader, iterator: Any, iteration: Iteration | None) -> None:
        self._loader = loader
        self._iterator = iterator
        self._iteration = iteration

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._iterator.__class__

    def __iter__(self) -> RecordedIterator:
        return self

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_iterator", "_iteration"):
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __next__(self) -> Any:
        try:
            return self._opened(self._next())
        except StopIteration:
            # Of the loader, or of the dataset: whoever iterates cannot tell, and takes either for the end.
            if self._iteration is not None:
                self._loader._audit_receiver.ended(self._loader, self._iteration)
            raise

    def _next(self) -> RecordedBatch:
        try:
            with self._loader._audit_receiver.tracker.paused():
                envelope: RecordedBatch = next(self._iterator)
            return envelope
        except StopIteration:
            raise
        except BaseException as error:
            self._loader._audit_receiver.broke(error)
            raise

    def _opened(self, envelope: RecordedBatch) -> Any:
        if self._iteration is not None:
            self._loader._audit_receiver.receive(self._loader, envelope, self._iteration)
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

    def __init__(self, loader: RecordedLoader, iteration: Iteration | None) -> None:
        self._loader = loader
        self._iteration = iteration
        self._heard = loader._audit_keeps_iterator()
        if self._heard:
            loader._audit_iterator._iteration = iteration
        with self._hearing():
            self._iterator = iter(loader._audit_loader)

    def _hearing(self) -> contextlib.AbstractContextManager[None]:
        return self._loader._holding(_get_iterator=self._make)

    def _make(self) -> Any:
        self._heard = True
        base = self._loader._audit_base
        return self._loader._recorded(lambda: type(base)._get_iterator(base), self._iteration)

    def __iter__(self) -> OwnIteration:
        return self

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_iterator", "_iteration", "_heard"):
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def __next__(self) -> Any:
        with self._hearing():
            batch = next(self._iterator)
        if not self._heard and self._iteration is not None:
            self._loader._audit_receiver.unheard(self._loader)
        return batch
