"""A batch that a dataset fetches as a whole: how it was asked for, and the single samples that it was seen to make."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from audit.recorders.items.item_key import read_key, write_key
from audit.recorders.randomness.generator_states import GeneratorState
from audit.recorders.randomness.visit_randomness import States
from audit.recorders.randomness.watch import BATCH, MADE_PREFIX, Watch
from audit.recorders.visit.error_text import describe_error
from audit.recorders.visit.instrument import Instrument
from audit.recorders.visit.item_calls import ItemCall
from audit.recorders.visit.visit import Visit

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
        """Return the item at one place of what came back: a list of items, or a column for each part of them."""
        try:
            if isinstance(made, dict):
                return {key: value[place] for key, value in made.items()}
            if isinstance(made, tuple):
                return tuple(value[place] for value in made)
            return made[place]
        except (TypeError, IndexError, KeyError):
            return made

    def state(self, place: int) -> GeneratorState | None:
        """Return what a replay must know to make the batch again; None for keys that cannot be stored."""
        keys = [write_key(index) for index in self.indices]
        if None in keys:
            return None
        # Earlier versions read numbers alone.
        are_numbers = all(isinstance(index, int) for index in self.indices)
        what = {"indices": list(self.indices)} if are_numbers else {"keys": keys}
        block = json.dumps({"method": self.method, **what})
        return GeneratorState(json.dumps(place).encode(), block.encode())

    @staticmethod
    def from_state(state: GeneratorState) -> tuple[BatchFetch, int]:
        """Return the fetch and the place in it that `state` was made of."""
        known = json.loads(state.block)
        indices = known["indices"] if "indices" in known else [read_key(key) for key in known["keys"]]
        return BatchFetch(known["method"], indices), int(json.loads(state.small))


class BatchObserver:
    """Makes a visit of each call that a dataset makes for a batch, and notes the generators that it drew from."""

    def __init__(self, instrument: Instrument, new_visit: Callable[[], Visit], watch: Watch | None) -> None:
        self._instrument = instrument
        self._new_visit = new_visit
        self._watch = watch
        self._start = self._after = watch.take() if watch is not None else {}
        self.calls: list[ItemCall] = []
        #: Whether random numbers were drawn between the calls, for more than one sample.
        self._draws_outside = False

    def observe(self, owner: Any, index: Any, make: Callable[[], Any]) -> Any:
        """Make one call, as a visit of its own."""
        self._begin()
        call = ItemCall(owner, index, self._new_visit())
        self.calls.append(call)
        inserted = self._instrument.insert(call.visit)
        try:
            call.item = make()
        except (Exception, SystemExit) as error:
            call.visit.fail("dataset" if call.visit.rows else "load", error)
            raise
        finally:
            self._instrument.remove(inserted, call.visit)
            self._end(call)
        return call.item

    def _begin(self) -> None:
        if self._watch is None:
            return
        try:
            self._draws_outside |= self._watch.begin() != self._after
        except Exception:
            # The dataset's code must not see it. Without states the samples cannot be replayed, and nothing else is lost.
            self._watch = None

    def _end(self, call: ItemCall) -> None:
        if self._watch is None:
            return
        try:
            call.states = self._watch.drawn_states()
            self._after = self._watch.take()
        except Exception as error:
            call.visit.problem = call.visit.problem or f"the random states could not be noted: {describe_error(error)}"
            self._watch = None

    def join(self, calls: Sequence[ItemCall]) -> Visit | None:
        """Return one visit of all the calls that were made for a sample; None when there was none."""
        if not calls:
            return None
        visit = calls[-1].visit
        for call in calls[:-1]:
            visit.add_calls(call.visit)
        return visit

    def states_of(self, fetch: BatchFetch, places: Sequence[Sequence[ItemCall]], items: Any) -> list[States]:
        """Return the generator states that each place needs to be made again: its own, or those of the whole batch."""
        if self._watch is None:
            return [[] for _ in places]
        self._draws_outside |= self._watch.take() != self._after
        if not self._draws_outside and all(
            len(calls) == 1 and calls[0].item is fetch.item(items, place) for place, calls in enumerate(places)
        ):
            return [calls[0].states for calls in places]
        drawn = self._watch.drawn_states(self._start)
        made = {pair[0]: pair for call in self.calls for pair in call.states if pair[0].startswith(MADE_PREFIX)}
        drawn += [pair for name, pair in made.items() if name not in dict(drawn)]
        batch = [fetch.state(place) for place in range(len(places))]
        return [[*drawn, (BATCH, state)] if state is not None else drawn for state in batch]
