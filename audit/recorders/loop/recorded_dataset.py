"""The dataset and the collate function that a loader uses while it is recorded, in place of the user's own.

In a worker they stand where the user's own stood, so everything but fetching goes to the user's object: a
`worker_init_fn` that reads or sets attributes of `get_worker_info().dataset` reads and sets the real ones.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import default_collate, default_convert, get_worker_info

from audit.recorders.batch_tensors import all_tensors
from audit.recorders.envelope import BatchLayout, RecordedBatch
from audit.recorders.files.origin import Origin
from audit.recorders.items.item_key import key_states, number_of, show_key
from audit.recorders.loop.batch_labels import read_batch_labels
from audit.recorders.loop.batch_layout import describe_collation
from audit.recorders.model import mixing
from audit.recorders.visit.batch_fetch import BatchFetch, Method
from audit.recorders.visit.batch_row import describe_batch_stage
from audit.recorders.visit.error_text import describe_error
from audit.recorders.visit.item_calls import delegates_batches
from audit.recorders.visit.item_recorder import ItemRecorder
from audit.records import Stage

_TORCHS_OWN = (default_collate, default_convert)


@dataclass(slots=True)
class FailedItems:
    """Stands for the items of a batch that the user's dataset could not make."""

    error: Any


def portable_error(error: Exception) -> Any:
    """Return the error as the loader would have carried it out of this process."""
    worker = get_worker_info()
    if worker is None:
        return error
    return ExceptionWrapper(where=f"in DataLoader worker process {worker.id}")  # type: ignore[no-untyped-call]


class StandIn:
    """Passes for the user's dataset: has its class and its attributes."""

    def __init__(self, recorder: ItemRecorder) -> None:
        object.__setattr__(self, "_audit_recorder", recorder)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._audit_recorder.dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_audit_", "__")):
            raise AttributeError(name)
        return getattr(self._audit_recorder.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._audit_recorder.dataset, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._audit_recorder.dataset, name)

    def __len__(self) -> int:
        return len(self._audit_recorder.dataset)

    def __bool__(self) -> bool:
        return bool(self._audit_recorder.dataset)

    def __repr__(self) -> str:
        return repr(self._audit_recorder.dataset)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._audit_recorder,))


class RecordedMap(StandIn):
    """A map-style dataset as the user's loader fetches from it."""

    def __getitem__(self, index: Any) -> Any:
        # The loader asks like this only when it makes no batches; a list is then the user's own batch.
        fetch = self._fetch_list if isinstance(index, list) else self._item
        return self._fetch(lambda: fetch(index))

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        if fetches_batches(self._audit_recorder.dataset):
            return self._fetch(lambda: whole_batch(self._audit_recorder, indices))
        return self._fetch(lambda: record_items(self._audit_recorder, indices))

    def _fetch(self, fetch: Callable[[], Any]) -> Any:
        self._audit_recorder.clear()
        try:
            return fetch()
        except Exception as error:
            return FailedItems(portable_error(error))

    def _item(self, index: Any) -> Any:
        return record_item(self._audit_recorder, index)

    def _fetch_list(self, indices: list[Any]) -> Any:
        """Return several samples of one call, as batch_size=None with a sampler of lists asks for."""
        return whole_batch(self._audit_recorder, indices, "__getitem__")


def record_item(recorder: ItemRecorder, index: Any) -> Any:
    """Return `dataset[index]`, recorded under the number that the index means."""
    if type(index) is int and index >= 0:
        return recorder.record_index(index)
    number, origin = sample_number(recorder.dataset, index)
    fetch = functools.partial(operator.getitem, recorder.dataset, index)
    return recorder.record(number, fetch, origin, key_states(index))


def record_items(recorder: ItemRecorder, indices: Sequence[Any]) -> list[Any]:
    """Return `dataset[index]` of each index, recorded, with no other code between one and the next."""
    wanted, items = list(indices), list[Any]()
    with recorder.sequence():
        while (place := len(items)) < len(wanted):
            recorder.record_row(wanted, items)
            if len(items) == place:
                items.append(record_item(recorder, wanted[place]))
    return items


def whole_batch(recorder: ItemRecorder, indices: Sequence[Any], method: Method = "__getitems__") -> Any:
    """Fetch a batch by a method of the dataset's own; record it sample by sample as far as that can be observed."""
    samples = [sample_number(recorder.dataset, index) for index in indices]
    return recorder.record_batch(BatchFetch(method, indices), samples)


def sample_number(dataset: Any, index: Any) -> tuple[int, Origin | None]:
    """Return the sample that an index means: a whole number, also from the end; of a tuple its first number.

    Any other key has the number -1 and is identified by its source.
    """
    number = number_of(index)
    if number is None:
        return -1, Origin(f"dataset://{show_key(index)}")
    if number < 0:
        try:
            number += len(dataset)
        except TypeError:
            return number, None
    return number, None


def fetches_batches(dataset: Any) -> bool:
    """Return whether the dataset has its own code for whole batches; then that code must run."""
    if not callable(getattr(dataset, "__getitems__", None)):
        return False
    if delegates_batches(dataset):
        return fetches_batches(dataset.dataset)
    # Hugging Face's gives the same items either way, unless a transform works on whole batches.
    module = type(dataset).__module__
    if module.startswith("datasets."):
        return bool(getattr(dataset, "format", {}).get("type") == "custom")
    return True


class RecordedIterable(StandIn):
    """An iterable dataset as the user's loader draws from it."""

    def __init__(self, recorder: ItemRecorder) -> None:
        super().__init__(recorder)
        object.__setattr__(self, "_audit_items", None)

    def __iter__(self) -> Iterator[Any]:
        recorder = self._audit_recorder
        # A last batch that drop_last dropped has left its rows behind.
        recorder.clear()
        recorder.begin_stream()
        items = RecordedItems(recorder, iter(recorder.dataset))
        object.__setattr__(self, "_audit_items", items)
        # A loader that saves its state asks whether the dataset is its own iterator.
        return self if items.source is recorder.dataset else items

    def __next__(self) -> Any:
        return next(self._audit_items)


class RecordedItems:
    """The iterator of an iterable dataset; everything but taking items is the user's own."""

    def __init__(self, recorder: ItemRecorder, source: Iterator[Any]) -> None:
        self.source = source
        self._recorder = recorder
        self._number = 0
        self._failed: FailedItems | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._failed is not None and self._recorder.failing:
            # The rest of the batch: with drop_last a short one would be dropped, and the error with it.
            return self._failed
        self._failed = None
        try:
            item = self._recorder.record(
                self._number, self.source.__next__, Origin(f"dataset://{self._number}", is_streamed=True)
            )
        except StopIteration:
            # The end is not a sample: take back what was noted of it.
            self._recorder.forget_last()
            raise
        except Exception as error:
            self._failed = FailedItems(portable_error(error))
            self._recorder.failing = True
            return self._failed
        self._number += 1
        return item


class RecordingCollate:
    """The user's collate function, with the rows put beside what it makes."""

    def __init__(self, collate: Callable[[Any], Any], recorder: ItemRecorder, indexed: bool) -> None:
        self.collate = collate
        self.recorder = recorder
        self.indexed = indexed
        #: None for torch's own, which stack the items and change nothing.
        self._stage = None if collate in _TORCHS_OWN else describe_batch_stage(collate, "collate")
        #: Whether the user says with `audit.stage` that row n of the batch is sample n.
        self._keeps_places = hasattr(collate, "_audit_stage")

    def __call__(self, items: Any) -> RecordedBatch:
        failed = items if isinstance(items, FailedItems) else None
        if failed is None and isinstance(items, list) and FailedItems in map(type, items):
            failed = next(item for item in items if isinstance(item, FailedItems))
        if failed is not None:
            return self.recorder.take_batch(None, indexed=self.indexed, error=failed.error)
        # The function may sort the list itself.
        given = list(items) if isinstance(items, list) else items
        with mixing.observe_mixes() as mixes:
            try:
                data = self.collate(items)
            except Exception as error:
                return self.recorder.take_batch(None, indexed=self.indexed, error=portable_error(error))
        layout, is_mix_proved = None, True
        if self._stage is not None:
            layout, is_mix_proved = self._find_layout(self._stage, given, data, mixes)
        mixed = mixing.weights(mixes.mixes, self.recorder.count) if mixes.mixes and is_mix_proved else None
        return self.recorder.take_batch(data, indexed=self.indexed, layout=layout, mixed=mixed)

    def _find_layout(self, stage: Stage, given: Any, data: Any, mixes: mixing.CollateMixes) -> tuple[BatchLayout, bool]:
        """Return which samples the batch is made of, and whether its mixes are of the samples in their order."""
        count = self.recorder.count
        name = f"{stage.name} ({stage.qualname})"
        try:
            if not isinstance(given, list) or len(given) != count:
                # Without batches the function is given one item, or the columns of several.
                columns = BatchFetch("__getitem__", [])
                given = [given] if count == 1 else [columns.item(given, place) for place in range(count)]
            keeps_places = self._keeps_places or count == 1
            found = describe_collation(data, given, name, keeps_places=keeps_places, mixes=mixes)
        except Exception as error:
            self.recorder.note_problem(f"what {stage.name} made could not be described: {describe_error(error)}")
            return BatchLayout([None for _ in all_tensors(data)], False, None, name), False
        if found.rows != []:
            self.recorder.add_collated(stage, found.rows)
        self._add_labels(data, given, found.proved_places)
        return found.layout, found.is_mix_proved

    def _add_labels(self, data: Any, items: list[Any], places: Sequence[int] | None) -> None:
        """Add the class numbers that the batch has for its samples; `places` are the items of the rows of its input."""
        rows = self.recorder.rows
        try:
            labels = read_batch_labels(data, items, rows.labels, places, self.recorder.label.finder)
            if labels is not None:
                rows.add_batch_labels(labels)
        except Exception as error:
            self.recorder.note_problem(f"the labels of a batch could not be read: {describe_error(error)}")
