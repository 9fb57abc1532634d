"""How the random number generators of a visit are prepared: the one thing in which recording, own loops and replay differ.

`audit run` seeds them, a loop of the user's own is only watched, and a replay puts back what was recorded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from audit.recorders.randomness.generator_states import GeneratorState
from audit.recorders.randomness.seeding import Seeder
from audit.recorders.randomness.watch import Restorer, Watch

States = Sequence[tuple[str, GeneratorState]]


@dataclass(slots=True)
class VisitRequest:
    """Which visit is to be made."""

    index: int
    epoch: int = 0
    #: By the name of a generator, the state that it had before the visit: for a replay.
    states: Mapping[str, GeneratorState] = field(default_factory=dict)


class Randomness(ABC):
    """Prepares the generators before a visit, and reports what the visit drew from them."""

    #: Knows the states of all generators, where the visit is watched; else None.
    watch: Watch | None = None
    #: Generators that were to be restored and are nowhere to be found.
    missing: Sequence[str] = ()

    @abstractmethod
    def prepare(self, request: VisitRequest) -> None:
        """Put the generators into the state that the visit begins with."""

    def prepare_again(self, request: VisitRequest) -> bool:
        """Prepare once more if the visit made generators that were not there before; returns whether it must be repeated."""
        return False

    def find_generators(self) -> None:
        """Look for generators now, rather than at the first visit."""
        return

    def drawn_states(self) -> States:
        """Return the generators that the visit drew from, with their states before it, where that is recorded."""
        return []

    def unchanged_memory(self) -> tuple[Any, ...] | None:
        """Return what the compiled loops compare after a visit: if it is the same, no generator needs to be prepared for the
        next one in a row. None where they must be prepared for each."""
        return None

    def chain(self, is_chained: bool) -> None:
        """Say that no code of the user's runs in this thread between a visit and the next, or that it may run again."""
        return


class SeededRandomness(Randomness):
    """Seeds every generator from (seed, epoch, index): what a sample becomes depends on nothing else."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._seeder = Seeder(dataset, seed)

    def prepare(self, request: VisitRequest) -> None:
        """Seed all generators for this visit."""
        self._seeder(request.epoch, request.index)

    def find_generators(self) -> None:
        """Look for generators now; a visit looks again where anything has changed since."""
        self._seeder.find_generators()

    def prepare_again(self, request: VisitRequest) -> bool:
        """Seed generators that the visit made when it first needed them, too."""
        if not self._seeder.has_new_generators():
            return False
        self.prepare(request)
        return True


class WatchedRandomness(Randomness):
    """Changes nothing: notes the states of the generators that a visit draws from."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        #: Whether the states after a visit are those before the next, and whether there was one.
        self._is_chained = self._has_ended = False

    def prepare(self, request: VisitRequest) -> None:
        """Take the states before the visit."""
        if self.watch is None:
            self.find_generators()
        assert self.watch is not None
        if self._is_chained and self._has_ended:
            self.watch.continue_from_last()
        else:
            self.watch.begin()
        self._has_ended = False

    def find_generators(self) -> None:
        """Look for generators now; a visit looks again where anything has changed since."""
        self.watch = Watch(self._dataset)

    def chain(self, is_chained: bool) -> None:
        """Take the states after a visit for those before the next, from now on or no longer."""
        self._is_chained, self._has_ended = is_chained, False

    def unchanged_memory(self) -> tuple[Any, ...] | None:
        """Return where the states lie that were taken last, while they are taken for those before the next visit."""
        return self.watch.unchanged_memory() if self._is_chained and self.watch is not None else None

    def drawn_states(self) -> States:
        """Return the generators whose state has changed since `prepare`."""
        if self.watch is None:
            return []
        found = self.watch.drawn_states()
        self._has_ended = True
        return found

    def __getstate__(self) -> dict[str, Any]:
        # Each process finds the generators of its own copy of the dataset.
        return {"_dataset": self._dataset, "watch": None, "_is_chained": False, "_has_ended": False}


class RestoredRandomness(Randomness):
    """Puts the generators into the states that were recorded."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._restorer: Restorer | None = None

    def prepare(self, request: VisitRequest) -> None:
        """Restore the states of the request."""
        if self._restorer is None:
            self._restorer = Restorer(self._dataset)
        self.missing = self._restorer.restore(request.states)

    def prepare_again(self, request: VisitRequest) -> bool:
        """Restore generators that the visit made when it first needed them, too."""
        before = len(self.missing)
        if before:
            self.prepare(request)
        return len(self.missing) < before

    def __getstate__(self) -> dict[str, Any]:
        return {"_dataset": self._dataset, "_restorer": None}
