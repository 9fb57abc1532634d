"""The state of every random number generator, taken before a visit and kept only if the visit drew from it.

How a state is taken and put back is in generator_states.py: a twister's array is kept once, its position per visit.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import get_worker_info

from audit.recorders.randomness.generator_memory import UnchangedMemory
from audit.recorders.randomness.generator_search import GeneratorPlace, GeneratorSearch
from audit.recorders.randomness.generator_states import (
    GeneratorSource,
    GeneratorState,
    global_sources,
    list_held_sources,
)

#: What a visit's states say besides: which worker it was made in, and which generators it made itself.
WORKER = "worker"
MADE_PREFIX = "made:"
#: The batch that a visit was made in, where its dataset makes batches as a whole.
BATCH = "batch"
#: What its dataset was asked for, where that is not the sample's index.
KEY = "key"
#: The place where a generator was made held None before.
_NO_STATE = b"None"


class Watch:
    """Tells which generators a visit drew from, and what their states were before it."""

    def __init__(self, root: Any) -> None:
        self._globals = global_sources()
        self._search = GeneratorSearch(root)
        self._before: dict[str, GeneratorState] = {}
        self._taken: dict[str, GeneratorState] = {}
        self._find_sources()

    def begin(self) -> dict[str, GeneratorState]:
        """Take every state; returns them by the generator's name."""
        self._look()
        self._before = self.take()
        return self._before

    def continue_from_last(self) -> None:
        """Begin where the last `drawn_states` ended: nothing can have been drawn since."""
        self._before = self._taken

    def unchanged_memory(self) -> tuple[Any, ...] | None:
        """Return what shows, if it is the same after a visit, that `drawn_states` would find nothing; see values/_visit.h.

        None where memory alone does not show it.
        """
        if self._before is not self._taken or not self._is_plain:
            return None
        memory, search = self._memory.content, self._search.content
        return (*memory, *search) if memory is not None and search is not None else None

    def take(self) -> dict[str, GeneratorState]:
        """Return the states of all generators that are known; the same dict while none of them has changed."""
        known = self._taken
        if self._memory.holds():
            if not self._asked:
                return known
            self._taken = known | {source.name: source.take() for source in self._asked}
            return self._taken
        # In this order: what another thread draws in between is noticed the next time.
        self._memory.remember()
        self._taken = {source.name: source.take() for source in self._sources}
        if any(not _is_in_memory(source, self._taken[source.name]) for source in self._sources):
            self._memory.forget()
        return self._taken

    def drawn_states(self, since: dict[str, GeneratorState] | None = None) -> list[tuple[str, GeneratorState]]:
        """Return (name, state before) of each generator whose state has changed since `begin`, or since these states."""
        before = self._before if since is None else since
        if before is self._taken and self._is_plain and self._memory.holds() and self._search.is_unchanged():
            return []
        made = self._look()
        now = self.take()
        found: list[tuple[str, GeneratorState]] = []
        if now is not before:
            # An unchanged state is the same object: then nothing is compared.
            found = [
                (name, state) for name, state in before.items() if now.get(name) is not state and now.get(name) != state
            ]
        worker = _worker_state() if made or self._search.asks_for_worker else []
        if made or worker or self._search.asks_for_seed:
            # Made from, or depending on, the worker's seed: that is part of torch's state, drawn from or not.
            found = [("torch", before["torch"]), *(pair for pair in found if pair[0] != "torch"), *worker]
        return found + [
            (f"{MADE_PREFIX}{path}", GeneratorState(_NO_STATE if named else b"")) for path, named in made.items()
        ]

    def _look(self) -> dict[str, bool]:
        """Notice generators that were made or replaced; gives the paths of new ones."""
        places = self._search.places
        made = self._search.refresh()
        if self._search.places is not places:
            self._find_sources()
        return made

    def _find_sources(self) -> None:
        self._sources = [*self._globals, *list_held_sources(self._search)]
        #: Generators that must be asked for their state each time.
        self._asked = [source for source in self._sources if source.memory is None]
        self._memory = UnchangedMemory([source.memory for source in self._sources if source.memory is not None])
        self._taken = {}
        #: Whether memory alone shows that a visit drew nothing.
        self._is_plain = not self._asked and not self._search.asks_for_worker


def _is_in_memory(source: GeneratorSource, state: GeneratorState) -> bool:
    """Return whether the bytes of a generator's memory are its whole state; one that is asked each time is not in question."""
    return source.memory is None or source.memory.small_bytes in (None, len(state.small))


class Restorer:
    """Puts generators into the states that they had before a visit."""

    def __init__(self, root: Any) -> None:
        self._globals = {source.name: source for source in global_sources()}
        self._search = GeneratorSearch(root)
        self._places: list[GeneratorPlace] = []
        self._held: dict[str, GeneratorSource] = {}
        self._look()

    def restore(self, states: Mapping[str, GeneratorState]) -> list[str]:
        """Set what can be set; gives the names of recorded generators that are not there."""
        self._look()
        if WORKER not in states and (
            self._search.asks_for_worker or any(name.startswith(MADE_PREFIX) for name in states)
        ):
            # It was recorded in the main process, and may be replayed in a worker, which has a seed of its own.
            _be_main_process()
        missing = []
        for name, state in states.items():
            if name in (BATCH, KEY):
                continue
            if name == WORKER:
                _be_worker(state)
            elif name.startswith(MADE_PREFIX):
                self._unmake(name.removeprefix(MADE_PREFIX), named=state.small == _NO_STATE)
            elif (source := self._globals.get(name) or self._held.get(name)) is not None:
                source.put(state)
            else:
                missing.append(name)
        return missing

    def _look(self) -> None:
        places = self._places
        self._search.refresh()
        self._places = self._search.places
        if self._places is not places:
            self._held = {source.name: source for source in list_held_sources(self._search)}

    def _unmake(self, path: str, *, named: bool) -> None:
        for place in self._search.places:
            if place.path == path:
                place.forget(named=named)


@contextlib.contextmanager
def restore_worker() -> Iterator[None]:
    """Forget afterwards what a replayed visit was given as its worker."""
    from torch.utils.data._utils import worker

    before = worker._worker_info
    try:
        yield
    finally:
        worker._worker_info = before


_NO_DATASET: Any = None


def _be_main_process() -> None:
    """Let this process seem to be no worker; `restore_worker` undoes it."""
    from torch.utils.data._utils import worker

    worker._worker_info = None


def _worker_state() -> list[tuple[str, GeneratorState]]:
    info = get_worker_info()
    if info is None:
        return []
    facts = {"id": info.id, "num_workers": info.num_workers, "seed": info.seed}
    return [(WORKER, GeneratorState(json.dumps(facts).encode()))]


def _be_worker(state: GeneratorState) -> None:
    from torch.utils.data._utils import worker

    worker._worker_info = worker.WorkerInfo(**json.loads(state.small), dataset=_NO_DATASET)
