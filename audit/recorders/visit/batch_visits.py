"""Makes a batch that a dataset fetches as a whole, with a visit for each sample that it was seen to make.

Recording and replay both call `make_batch`, so that what one sees the other sees too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from audit.recorders.randomness.states import State
from audit.recorders.randomness.watch import BATCH, MADE, Watch
from audit.recorders.seeded_dataset import Instrument
from audit.recorders.visit.item_calls import ItemCall, ItemCalls, assign_calls
from audit.recorders.visit.visit import Visit
from audit.records import Level

States = list[tuple[str, State]]
Method = Literal["__getitems__", "__getitem__"]


@dataclass(frozen=True, slots=True)
class BatchFetch:
    """How a batch was asked for: by `__getitems__(indices)`, or by `dataset[indices]`."""

    method: Method
    indices: Sequence[Any]

    def make(self, dataset: Any) -> Any:
        """Ask for it."""
        return getattr(dataset, self.method)(self.indices)

    def item(self, made: Any, place: int) -> Any:
        """The item at one place of what came back: a list of items, or a column for each part of them."""
        try:
            if isinstance(made, dict):
                return {key: value[place] for key, value in made.items()}
            if isinstance(made, tuple):
                return tuple(value[place] for value in made)
            return made[place]
        except (TypeError, IndexError, KeyError):
            return made

    def state(self, place: int) -> State | None:
        """What a replay must know to make the batch again; None for keys that are no numbers."""
        if not all(isinstance(index, int) for index in self.indices):
            return None
        block = json.dumps({"method": self.method, "indices": list(self.indices)})
        return State(json.dumps(place).encode(), block.encode())

    @staticmethod
    def recorded(state: State) -> tuple[BatchFetch, int]:
        """The fetch and the place in it that `state` was made of."""
        known = json.loads(state.block)
        return BatchFetch(known["method"], known["indices"]), int(json.loads(state.small))


@dataclass(slots=True)
class BatchVisits:
    """What came of it: one visit per place, or None for a place that was not seen being made."""

    made: Any = None
    error: Exception | None = None
    visits: list[Visit | None] = field(default_factory=list)
    #: The generators that each place drew from, with their states before.
    states: list[States] = field(default_factory=list)


class _Observer:
    """Makes a visit of each call, and notes the generators that it drew from."""

    def __init__(self, instrument: Instrument, level: Level | Literal["verify"], watch: Watch | None) -> None:
        self._instrument = instrument
        self._level = level
        self._watch = watch
        self._after = watch.begin() if watch is not None else {}
        self.start = self._after
        self.calls: list[ItemCall] = []
        self.states: list[States] = []
        #: Whether random numbers were drawn between the calls, for more than one sample.
        self.draws_outside = False

    def observe(self, owner: Any, index: Any, make: Callable[[], Any]) -> Any:
        if self._watch is not None:
            self.draws_outside |= self._watch.begin() != self._after
        with self._instrument.observing(self._level) as visit:
            call = ItemCall(owner, index, visit)
            self.calls.append(call)
            try:
                call.item = make()
            except Exception as error:
                visit.fail("dataset" if visit.rows else "load", error)
                raise
            finally:
                if self._watch is not None:
                    self.states.append(self._watch.drew())
                    self._after = self._watch.take()
        return call.item

    def finish(self) -> States:
        """The generators that the whole batch drew from."""
        if self._watch is None:
            return []
        self.draws_outside |= self._watch.take() != self._after
        drawn = self._watch.drew(self.start)
        made = {pair[0]: pair for states in self.states for pair in states if pair[0].startswith(MADE)}
        return drawn + [pair for name, pair in made.items() if name not in dict(drawn)]


def make_batch(
    dataset: Any,
    fetch: BatchFetch,
    instrument: Instrument,
    level: Level | Literal["verify"],
    watch: Watch | None = None,
) -> BatchVisits:
    """Make a batch. What the dataset raises is in `error`; the visits are not ended yet."""
    result = BatchVisits()
    observer = _Observer(instrument, level, watch)
    with ItemCalls(dataset, observer.observe):
        try:
            result.made = fetch.make(dataset)
        except Exception as error:
            result.error = error
    drawn = observer.finish()
    calls = observer.calls
    places = assign_calls(dataset, calls, fetch.indices, result.made)
    result.visits = [_joined(place) for place in places]
    alone = (
        result.error is None
        and not observer.draws_outside
        and all(
            len(place) == 1 and place[0].item is fetch.item(result.made, number) for number, place in enumerate(places)
        )
    )
    by_visit = {id(call.visit): states for call, states in zip(calls, observer.states, strict=False)}
    for number, visit in enumerate(result.visits):
        if alone and visit is not None:
            result.states.append(by_visit.get(id(visit), []))
        else:
            # The sample can only be made again together with its batch.
            state = fetch.state(number)
            result.states.append([*drawn, (BATCH, state)] if state is not None else drawn)
    return result


def _joined(calls: Sequence[ItemCall]) -> Visit | None:
    """One visit of all the calls that were made for a sample."""
    if not calls:
        return None
    visit = calls[-1].visit
    for call in calls[:-1]:
        visit.add_calls(call.visit)
    return visit
