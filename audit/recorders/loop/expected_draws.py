"""What a whole pass over a loader draws, and which passes were whole: what the check `coverage` holds the rows against.

Only torch's own samplers are known to draw every sample. Any other may leave some out on purpose, and promises nothing;
nor does a pass that the loop broke off.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass
from typing import Any

from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler, Subset

from audit.recorders.calls.callables import read_attribute
from audit.recorders.calls.requested_items import makes_own_items
from audit.records import Run
from audit.texts import path_as_utf8

#: A dataset that chooses from another is looked into so often.
_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class Draws:
    """What a whole pass draws: every index below `length`, or this rank's share of them."""

    length: int
    #: How many the sampler gives, repeated ones included.
    asked: int
    #: Of them, those of a last batch that `drop_last` drops.
    dropped: int


def draws_of(loader: Any) -> Draws | None:
    """Return what a pass over this loader is to draw; None where its sampler promises nothing."""
    with contextlib.suppress(Exception):
        # Lengths are the user's code.
        batches, sampler = loader.batch_sampler, sampler_of(loader)
        length = _count_draws(sampler)
        if length is None:
            return None
        asked = len(sampler)
        dropped = asked % batches.batch_size if batches is not None and batches.drop_last else 0
        return Draws(length, asked, dropped)
    return None


def _count_draws(sampler: Any) -> int | None:
    kind = type(sampler)
    if kind is DistributedSampler:
        return len(sampler.dataset)
    if kind is SequentialSampler:
        return len(sampler.data_source)
    if kind is RandomSampler and not sampler.replacement and len(sampler) >= len(sampler.data_source):
        return len(sampler.data_source)
    return None


def sampler_of(loader: Any) -> Any:
    """Return the sampler that decides which samples come: a batch sampler of the user's own, else the loader's sampler."""
    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return batches.sampler if type(batches) is BatchSampler else batches


def length_of(dataset: Any) -> int | None:
    """Return how many samples a dataset has; None for an iterable one, whose length is not a promise of indices."""
    if isinstance(dataset, IterableDataset):
        return None
    try:
        return len(dataset)
    except Exception:
        return None


def root_of(dataset: Any) -> str | None:
    """Return the folder that a dataset, or the one that it chooses from, names as its own; None if it names none."""
    with contextlib.suppress(Exception):
        # Attributes are the user's code.
        for _ in range(_DEEPEST):
            root = read_attribute(dataset, "root")
            if isinstance(root, (str, os.PathLike)):
                return path_as_utf8(os.path.abspath(os.fspath(root)))
            dataset = dataset.dataset
    return None


def _base_of(dataset: Any) -> Any:
    """Return the dataset whose numbers identify the samples: of a `Subset`, the one that it chooses from."""
    for _ in range(_DEEPEST):
        if not isinstance(dataset, Subset) or makes_own_items(dataset):
            break
        dataset = dataset.dataset
    return dataset


class ExpectedDraws:
    """Keeps `loaders` and `several_datasets` in the recipe of a run (docs/FORMAT.md).

    The lists are never changed in place, always replaced: the writer's thread may be reading them.
    """

    def __init__(self) -> None:
        #: The datasets of each split, each once.
        self._datasets: dict[str | None, list[Any]] = {}
        #: By a loader's key, where it stands in the list.
        self._places: dict[int, int] = {}

    def add(self, run: Run, key: int, split: str | None, dataset: Any, sampler: str | None) -> None:
        """Add a loader by its dataset, or a dataset without one."""
        known = _loaders(run)
        facts = {"split": split, "length": length_of(dataset), "sampler": sampler, "root": root_of(dataset)}
        place = next((n for n, one in enumerate(known) if facts.items() <= one.items()), len(known))
        if place == len(known):
            run.recipe = run.recipe | {"loaders": [*known, facts | {"passes": []}]}
        self._places[key] = place
        self._count_dataset(run, split, dataset)

    def _count_dataset(self, run: Run, split: str | None, dataset: Any) -> None:
        """Note how many datasets a split has, as soon as it has several: the samples of each are numbered from 0."""
        known = self._datasets.setdefault(split, [])
        if any(one is dataset for one in known):
            return
        known.append(dataset)
        if len(known) > 1:
            several = {split: found for split, found in self._datasets.items() if len(found) > 1}
            listed = [
                {"split": split, "datasets": len(found), "bases": len({id(_base_of(one)) for one in found})}
                for split, found in several.items()
            ]
            run.recipe = run.recipe | {"several_datasets": listed}

    def add_pass(self, run: Run, key: int, epoch: int, draws: Draws) -> None:
        """Add a pass over a loader that has come to its end."""
        known = _loaders(run)
        place = self._places[key]
        passes, numbers = list(known[place]["passes"]), asdict(draws)
        last = passes[-1] if passes else None
        if last is not None and numbers.items() <= last.items() and last["last"] <= epoch <= last["last"] + 1:
            passes[-1] = last | {"last": epoch}
        else:
            passes.append({"first": epoch, "last": epoch, **numbers})
        known[place] = known[place] | {"passes": passes}
        run.recipe = run.recipe | {"loaders": known}

    def add_stream(self, run: Run, key: int, epoch: int, items: int) -> None:
        """Add how many items a stream gave in a pass that has come to its end."""
        known = _loaders(run)
        place = self._places[key]
        streamed = list(known[place].get("streamed", ()))
        last = streamed[-1] if streamed else None
        if last is not None and last["items"] == items and last["last"] + 1 == epoch:
            streamed[-1] = last | {"last": epoch}
        else:
            streamed.append({"first": epoch, "last": epoch, "items": items})
        known[place] = known[place] | {"streamed": streamed}
        run.recipe = run.recipe | {"loaders": known}


def _loaders(run: Run) -> list[dict[str, Any]]:
    return list(run.recipe.get("loaders", ()))
