"""Random number generators: the global ones, and those that objects hold; seeding them per visit.

`audit run` seeds every generator from (seed, epoch, index) before each visit, so that what a sample
becomes depends neither on the number of workers nor on the batch size.
"""

from __future__ import annotations

import random
import sys
import zlib
from typing import Any

from audit.identity import visit_seed
from audit.recorders.randomness.generator_search import GeneratorSearch


def seed_globals(seed: int) -> None:
    """Seed torch, numpy and random, each from the same number."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(seed)


def seed_generator(generator: Any, seed: int) -> None:
    """Seed a generator that an object holds, in place."""
    if isinstance(generator, random.Random):
        generator.seed(seed)
    elif hasattr(generator, "manual_seed"):
        generator.manual_seed(seed)
    elif hasattr(generator, "n_children_spawned"):
        _seed_sequence(generator, seed)
    elif hasattr(generator, "set_state"):
        generator.seed(seed & 0xFFFFFFFF)
    else:
        bits = getattr(generator, "bit_generator", generator)
        fresh = type(bits)(seed)
        # The sequence too: `spawn` draws from it, and not from the bits.
        bits.__setstate__((fresh.state, fresh.seed_seq))


def _seed_sequence(sequence: Any, seed: int) -> None:
    """Seed in place, the way that unpickling does it: a SeedSequence cannot be set otherwise."""
    sequence.__setstate__(type(sequence)(seed).__reduce__()[2])


class Seeder:
    """Seeds everything that a dataset can draw from. Finds held generators once per process, and those made later."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self._search: GeneratorSearch | None = None

    def __call__(self, epoch: int, index: int) -> None:
        """Seed for one visit."""
        if self._search is None:
            self.find_generators()
        assert self._search is not None
        self._search.refresh()
        seed = visit_seed(self._seed, epoch, index)
        seed_globals(seed)
        for place in self._search.places:
            # By its path, not its place in the list: others may be made later, in one process and not in another.
            seed_generator(place.generator, visit_seed(seed, zlib.crc32(place.path.encode("utf-8", "replace")), index))

    def find_generators(self) -> None:
        """Look for held generators, as if none had been found before."""
        self._search = GeneratorSearch(self._dataset)

    def has_new_generators(self) -> bool:
        """Return whether the visit made a generator that was not there to be seeded: then it must be made once more."""
        return self._search is not None and bool(self._search.refresh())

    def __getstate__(self) -> dict[str, Any]:
        return {"_dataset": self._dataset, "_seed": self._seed, "_search": None}
