"""How one loader of the user's is recorded, without changing what it draws.

The user's own loader does the work: while its iterator is being made, its dataset and its collate function are
replaced by recording ones, and put back at once. Samplers, generators, workers, prefetching and pinning are its own,
so that every random number is drawn where it was drawn before. The rows travel beside each batch as one block of bytes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from audit.recorders.activity import Activity
from audit.recorders.capture_level import CaptureLevel
from audit.recorders.envelope import RecordedBatch
from audit.recorders.loop.base_loader import base_of
from audit.recorders.loop.expected_draws import Draws
from audit.recorders.loop.pickling import why_not_picklable
from audit.recorders.loop.recorded_dataset import RecordedIterable, RecordedMap, RecordingCollate
from audit.recorders.loop.recorded_iterator import OwnIteration, RecordedIterator
from audit.recorders.randomness.visit_randomness import WatchedRandomness
from audit.recorders.stages.discover import Pipeline
from audit.recorders.visit.item_label import LabelFinder
from audit.recorders.visit.item_recorder import ItemRecorder
from audit.recorders.visit.item_source import SourceFinder
from audit.recorders.visit.make import VisitMaker


@dataclass(slots=True, eq=False, weakref_slot=True)
class Iteration:
    """One pass over a loader."""

    epoch: int
    #: Items of an iterable dataset so far: their order is their index.
    arrived: int = 0
    #: What it is to draw, where that is known.
    draws: Draws | None = None
    #: Whether it came to its end.
    is_done: bool = False


class Receiver(Protocol):
    """What a recording does with the batches of a loader."""

    def new_activity(self) -> Activity: ...
    def pause_tracking(self) -> contextlib.AbstractContextManager[None]: ...
    def begin(self, loader: LoaderRecording) -> Iteration | None: ...
    def receive(self, loader: LoaderRecording, envelope: RecordedBatch, iteration: Iteration) -> None: ...
    def finish_pass(self, loader: LoaderRecording, iteration: Iteration) -> None: ...
    def note_failure(self, error: BaseException) -> None: ...
    def note_unrecorded_workers(self, error: BaseException) -> None: ...
    def note_unrecorded_iterator(self, loader: LoaderRecording) -> None: ...


#: What restores each generator, and its state.
GeneratorStates = list[tuple[Callable[[Any], Any], Any]]


class LoaderRecording:
    """Makes recorded iterators of one loader."""

    def __init__(
        self,
        loader: DataLoader[Any],
        pipeline: Pipeline,
        level: CaptureLevel,
        receiver: Receiver,
        label: LabelFinder = None,
        source: SourceFinder = None,
    ) -> None:
        #: What the user calls their loader, and the DataLoader in it that fetches.
        self.loader = loader
        self.base = base_of(loader)
        self._receiver = receiver
        #: A loader that can be saved, such as torchdata's, keeps its iterator for that: then ours must be the one it keeps.
        self.keeps_state = callable(getattr(type(self.base), "state_dict", None))
        #: With persistent workers a loader keeps its iterator; ours makes envelopes, the user's own must not.
        self._kept: Any = None
        dataset = self.base.dataset
        is_iterable = isinstance(dataset, IterableDataset)
        maker = VisitMaker(dataset, pipeline, WatchedRandomness(dataset), activity=receiver.new_activity())
        self._recorder = recorder = ItemRecorder(maker, level, label=label, source=source)
        self._dataset = RecordedIterable(recorder) if is_iterable else RecordedMap(recorder)
        self._collate = RecordingCollate(self.base.collate_fn, recorder, not is_iterable)

    @property
    def iterator(self) -> Any:
        """The iterator that the loader keeps while it works for this recording."""
        return self.base.__dict__.get("_iterator") if self.keeps_state else self._kept

    @iterator.setter
    def iterator(self, value: Any) -> None:
        if self.keeps_state:
            self.base.__dict__["_iterator"] = value
        else:
            self._kept = value

    def iterate(self) -> Any:
        """Return an iterator of the loader, recorded if the recording is open."""
        iteration = self._receiver.begin(self)
        if iteration is None and self.iterator is None:
            return iter(self.loader)
        if type(self.loader).__iter__ is not DataLoader.__iter__:
            return OwnIteration(self, self._receiver, iteration)
        return self.record_iterator(lambda: iter(self.loader), iteration)

    def save_state(self, *args: Any, **options: Any) -> Any:
        """Call the loader's own `state_dict`; an iterator that it makes for that is the one it will iterate."""
        with self.replace_attributes(_get_iterator=lambda: self.record_base_iterator(None)):
            return self.loader.state_dict(*args, **options)  # type: ignore[attr-defined]

    def record_base_iterator(self, iteration: Iteration | None) -> Any:
        """Return the iterator that the DataLoader's class makes, recorded."""
        return self.record_iterator(lambda: type(self.base)._get_iterator(self.base), iteration)

    def record_iterator(self, make: Callable[[], Any], iteration: Iteration | None) -> Any:
        """Return the iterator that `make` makes, recorded."""
        states = _take_generator_states(self.base) if self._spawns_workers else []
        if self.base.num_workers and not self._spawns_workers:
            self._recorder.prepare_workers(is_dataset_final=self.base.worker_init_fn is None)
        try:
            with (
                self.replace_attributes(dataset=self._dataset, collate_fn=self._collate),
                self._receiver.pause_tracking(),
            ):
                iterator = make()
        except Exception as error:
            return self._make_unrecorded(error, make, states)
        return RecordedIterator(self, self._receiver, iterator, iteration)

    def continue_iterator(self, iteration: Iteration | None) -> bool:
        """Let the next pass go on with an iterator that is there: with persistent workers, or after `state_dict`."""
        made_for_state = self.base.__dict__.get("_initial_iter_for_state_dict", False)
        goes_on = not self.keeps_state or self.base.persistent_workers or made_for_state
        if not goes_on or type(self.iterator) is not RecordedIterator:
            return False
        self.iterator.begin_pass(iteration)
        return True

    @contextlib.contextmanager
    def replace_attributes(self, **ours: Any) -> Iterator[None]:
        """Replace attributes of the DataLoader inside.

        They refuse to be set once the loader is made, so its dictionary is changed.
        """
        attributes = self.base.__dict__
        if not self.keeps_state:
            ours["_iterator"] = self.iterator
        before = {name: attributes[name] for name in ours if name in attributes}
        attributes.update(ours)
        try:
            yield
        finally:
            self._kept = attributes.get("_iterator")
            for name in ours:
                attributes.pop(name, None)
            attributes.update(before)

    @property
    def _spawns_workers(self) -> bool:
        """Whether workers are sent the dataset, so that it must pickle."""
        method = getattr(self.base.multiprocessing_context, "_name", None) or _start_method()
        return bool(self.base.num_workers) and method != "fork"

    def _make_unrecorded(self, error: Exception, make: Callable[[], Any], states: GeneratorStates) -> Any:
        """Make the iterator without recording if only recording keeps workers from being started; else raise why."""
        if not self._spawns_workers:
            raise error
        self.iterator = None
        reason = why_not_picklable(self.base)
        if reason is not None:
            raise reason from error
        self._receiver.note_unrecorded_workers(error)
        # The first attempt drew the seed of the workers: it must not change what the loop draws.
        for restore, state in states:
            restore(state)
        return make()


def _take_generator_states(loader: DataLoader[Any]) -> GeneratorStates:
    """Return the states of the generators that an iterator draws from when it is made, each with what restores it."""
    own = (torch.default_generator, loader.generator, getattr(loader.sampler, "generator", None))
    states: GeneratorStates = [(one.set_state, one.get_state()) for one in own if isinstance(one, torch.Generator)]
    return [*states, (random.setstate, random.getstate()), (np.random.set_state, np.random.get_state())]


def _start_method() -> str | None:
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_context().get_start_method()
