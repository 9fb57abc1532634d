"""Observes the items that a dataset's own `__getitems__` makes one by one.

A DataLoader asks a dataset with `__getitems__` for whole batches. Most of these methods call `self[index]` or
`self.dataset[index]` for each sample: while the batch is made, these calls are watched, each as a visit of its own. The
dataset's code runs unchanged. What it does to whole batches is not seen, and nothing is said of it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import Subset

from audit.recorders.calls.callables import read_attribute
from audit.recorders.files.thread_files import files_of_thread
from audit.recorders.randomness.visit_randomness import States
from audit.recorders.visit.visit import Visit

_MOST_LEVELS = 20
_METHOD = "__getitem__"
_LOCAL = threading.local()


@dataclass(slots=True)
class ItemCall:
    """One call of `dataset[index]` that was made for a batch."""

    owner: Any
    index: Any
    visit: Visit
    item: Any = None
    #: The generators that it drew from, with their states before.
    states: States = field(default_factory=list)


#: Makes one item in a visit of its own: given the dataset, the index, and the call itself.
Observe = Callable[[Any, Any, Callable[[], Any]], Any]


class ItemCalls:
    """Passes every outermost `__getitem__` call on a dataset, or on what it wraps, to `observe` while it is entered."""

    #: The one that was entered last in this process.
    under_way: ItemCalls | None = None

    def __init__(self, dataset: Any, observe: Observe) -> None:
        #: Items that were made in threads of the dataset's own, with the files that were opened for them.
        self.elsewhere: list[tuple[Any, list[str]]] = []
        self._observe = observe
        self._owners = {id(part): part for part in list_wrapped_datasets(dataset)}
        self._busy = False
        self._patched: list[tuple[type, Any]] = []

    def __enter__(self) -> ItemCalls:
        for kind in {type(part) for part in self._owners.values() if not delegates_batches(part)}:
            before = vars(kind).get(_METHOD)
            original = getattr(kind, _METHOD, None)
            if original is None:
                continue
            try:
                setattr(kind, _METHOD, _wrap_get_item(original))
            except TypeError:
                # A class written in C; its calls cannot be seen.
                continue
            self._patched.append((kind, before))
        _LOCAL.calls = ItemCalls.under_way = self
        return self

    def __exit__(self, *_: object) -> None:
        _LOCAL.calls = ItemCalls.under_way = None
        for kind, before in self._patched:
            if before is None:
                delattr(kind, _METHOD)
            else:
                setattr(kind, _METHOD, before)
        self._patched = []

    def call(self, owner: Any, index: Any, make: Callable[[], Any]) -> Any:
        """Observe one call, unless it is made inside another one or asks for several items."""
        if self._busy or id(owner) not in self._owners or not isinstance(index, (int, str, tuple)):
            return make()
        self._busy = True
        try:
            return self._observe(owner, index, make)
        finally:
            self._busy = False


def _wrap_get_item(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(original)
    def get_item(dataset: Any, index: Any) -> Any:
        calls: ItemCalls | None = getattr(_LOCAL, "calls", None)
        if calls is None:
            return _call_elsewhere(original, dataset, index)
        return calls.call(dataset, index, lambda: original(dataset, index))

    return get_item


def _call_elsewhere(original: Callable[[Any, Any], Any], dataset: Any, index: Any) -> Any:
    """Make an item in another thread, and note which files it opened there if a batch that is under way started the thread."""
    files = files_of_thread()
    if files is None or (batch := ItemCalls.under_way) is None:
        return original(dataset, index)
    before = len(files)
    item = original(dataset, index)
    batch.elsewhere.append((item, files[before:]))
    del files[before:]
    return item


def list_wrapped_datasets(dataset: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the dataset, and every dataset that it wraps in `dataset` or `datasets`."""
    if depth > _MOST_LEVELS or not hasattr(type(dataset), "__getitem__"):
        return
    yield dataset
    inner = read_attribute(dataset, "datasets")
    parts = list(inner.values()) if isinstance(inner, Mapping) else inner if isinstance(inner, (list, tuple)) else []
    for part in (read_attribute(dataset, "dataset"), *parts):
        if part is not None and part is not dataset:
            yield from list_wrapped_datasets(part, depth + 1)


def delegates_batches(dataset: Any) -> bool:
    """Return whether a dataset is a `Subset` that fetches as torch's own does: batches never go through its `__getitem__`."""
    kind = type(dataset)
    return (
        isinstance(dataset, Subset)
        and kind.__getitem__ is Subset.__getitem__
        and kind.__getitems__ is Subset.__getitems__
    )


def assign_calls(dataset: Any, calls: Sequence[ItemCall], indices: Sequence[Any], made: Any) -> list[list[ItemCall]]:
    """Return the calls that made each place of a batch; nothing for any place unless this is certain of all of them.

    A call belongs to the place whose item it returned, or whose item holds what it returned; else to the place whose
    index it was given. An index that occurs several times in the batch says so only if all calls came in its order. `made` is None for a batch that failed: then some places have no call.
    """
    places: list[list[ItemCall]] = [[] for _ in indices]
    owners = _owners_of_items(made, len(indices))
    wanted = {id(part): _indices_in(dataset, part, indices) for part in list_wrapped_datasets(dataset)}
    in_order = _places_in_order(calls, wanted)
    for number, call in enumerate(calls):
        place = owners.get(id(call.item)) if call.item is not None else None
        if place is None:
            asked = wanted.get(id(call.owner)) or []
            place = asked.index(call.index) if asked.count(call.index) == 1 else in_order[number]
        if place is None:
            return [[] for _ in indices]
        places[place].append(call)
    return places if made is None or all(places) else [[] for _ in indices]


def _places_in_order(calls: Sequence[ItemCall], wanted: Mapping[int, list[Any] | None]) -> list[int | None]:
    """Return the place of each call, where the calls on each dataset went through the batch in order, once or several times each."""
    found: list[int | None] = [None] * len(calls)
    for owner, asked in wanted.items():
        numbers = [number for number, call in enumerate(calls) if id(call.owner) == owner]
        if not asked or not numbers or len(numbers) % len(asked):
            continue
        times = len(numbers) // len(asked)
        places = [place for place in range(len(asked)) for _ in range(times)]
        for order in (places, [*range(len(asked))] * times):
            if all(calls[number].index == asked[place] for number, place in zip(numbers, order, strict=True)):
                for number, place in zip(numbers, order, strict=True):
                    found[number] = place
                break
    return found


def _owners_of_items(made: Any, count: int) -> dict[int, int]:
    """Return the place of each item, and of what it holds, by identity; not of what several places share."""
    found: dict[int, int] = {}
    shared: set[int] = set()
    if not isinstance(made, (list, tuple)) or len(made) != count:
        return found
    for place, item in enumerate(made):
        for part in _parts(item):
            if found.setdefault(id(part), place) != place:
                shared.add(id(part))
    return {identity: place for identity, place in found.items() if identity not in shared}


def _parts(item: Any, depth: int = 0) -> Iterator[Any]:
    # Small numbers and texts are one object wherever they occur, and say nothing.
    if isinstance(item, (bool, int, float, str, bytes, type(None))):
        return
    yield item
    if depth < 2 and isinstance(item, (tuple, list, Mapping)):
        for part in item.values() if isinstance(item, Mapping) else item:
            yield from _parts(part, depth + 1)


def _indices_in(dataset: Any, part: Any, indices: Sequence[Any]) -> list[Any] | None:
    """Return the indices that a batch has in a dataset below; None where that is not known."""
    if part is dataset:
        return list(indices)
    inner = read_attribute(dataset, "datasets")
    parts = list(inner.values()) if isinstance(inner, Mapping) else inner
    if type(dataset).__name__ == "StackDataset" and isinstance(parts, (list, tuple)):
        found = [_indices_in(one, part, indices) for one in parts]
        return next((one for one in found if one is not None), None)
    if delegates_batches(dataset):
        return _indices_in(dataset.dataset, part, [int(dataset.indices[index]) for index in indices])
    return None
