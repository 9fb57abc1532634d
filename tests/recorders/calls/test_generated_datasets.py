"""Datasets of generated shapes: recording changes nothing, and what is recorded is what happened.

A dataset is put together from transforms, the place where it keeps each, wrappers around it, and the way it is fetched.
Each transform reports what it returned, so that the recorded digests can be compared with the real values.
"""

from __future__ import annotations

import functools
import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from observing_material import difference, seed_everything
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

import audit
from audit import values

COUNT = 4
#: What the transforms returned in this process, in order.
RETURNED: list[str | None] = []


def noted(value: Any) -> Any:
    RETURNED.append(values.digest(value))
    return value


class Scale:
    def __call__(self, x: Any) -> Any:
        return noted(x * 0.5)


class Noise(nn.Module):
    """Draws from torch."""

    def forward(self, x: Any) -> Any:
        return noted(x + torch.rand(x.shape))


class Shift:
    """Draws from Python and numpy."""

    def __call__(self, x: Any) -> Any:
        return noted(x + random.random() + float(np.random.rand()))


def flip(x: Any) -> Any:
    return noted(torch.flip(x, (-1,)))


class Sometimes:
    """Runs one of the others, or none."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, x: Any) -> Any:
        return noted(self.inner(x) if random.random() < 0.5 else x.clone())


MAKERS: dict[str, Any] = {
    "scale": Scale,
    "noise": Noise,
    "shift": Shift,
    "function": lambda: flip,
    "partial": lambda: functools.partial(flip),
    "sometimes": lambda: Sometimes(Noise()),
}
REGISTRY: dict[str, Any] = {}


class SlottedHolder:
    __slots__ = ("step",)

    def __init__(self, step: Any) -> None:
        self.step = step

    def apply(self, x: Any) -> Any:
        return self.step(x)


class Keeper:
    """Keeps a transform in one of many places, and calls it from there."""

    def __init__(self, place: str, step: Any) -> None:
        self.place = place
        if place == "closure":
            self.call = lambda x: step(x)
        elif place == "registry":
            REGISTRY[f"step{len(REGISTRY)}"] = step
            self.key = list(REGISTRY)[-1]
        else:
            self.held = {
                "attribute": lambda: step,
                "list": lambda: [step],
                "tuple": lambda: (step,),
                "dict": lambda: {"train": step},
                "slot": lambda: SlottedHolder(step),
                "nested": lambda: {"all": [(step,)]},
                "method": lambda: step,
                "property": lambda: step,
            }[place]()

    def through_method(self, x: Any) -> Any:
        return self.held(x)

    @property
    def chosen(self) -> Any:
        return self.held


def apply(keeper: Keeper, x: Any) -> Any:
    place = keeper.place
    if place == "closure":
        return keeper.call(x)
    if place == "registry":
        return REGISTRY[keeper.key](x)
    if place == "slot":
        return keeper.held.apply(x)
    if place == "method":
        return keeper.through_method(x)
    if place == "property":
        return keeper.chosen(x)
    if place == "dict":
        return keeper.held["train"](x)
    if place == "nested":
        return keeper.held["all"][0][0](x)
    return keeper.held(x) if place == "attribute" else keeper.held[0](x)


PLACES = ["attribute", "list", "tuple", "dict", "slot", "nested", "method", "property", "closure", "registry"]


class Generated(Dataset[Any]):
    def __init__(self, name: str, plan: list[tuple[str, str]]) -> None:
        self.data = torch.arange(COUNT * 6.0).reshape(COUNT, 2, 3)
        keepers = [Keeper(place, MAKERS[kind]()) for kind, place in plan]
        setattr(self, name, keepers)
        self.name = name

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        x = self.data[index]
        for keeper in getattr(self, self.name):
            x = apply(keeper, x)
        return x, index % 2


class Batching(Generated):
    def __getitems__(self, indices: list[int]) -> Any:
        return [self[index] for index in indices]


class Outer(Dataset[Any]):
    def __init__(self, inner: Any) -> None:
        self.base = inner
        self.transform = Noise()

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> Any:
        x, y = self.base[index]
        return self.transform(x), y


WRAPPERS: dict[str, Any] = {
    "plain": lambda dataset: dataset,
    "subset": lambda dataset: Subset(dataset, [3, 1]),
    "concat": lambda dataset: ConcatDataset([dataset, dataset]),
    "outer": Outer,
    "outer of subset": lambda dataset: Outer(Subset(dataset, [2, 0])),
}

shapes = st.fixed_dictionaries(
    {
        "kind": st.sampled_from([Generated, Batching]),
        "name": st.sampled_from(["aug", "transform", "transforms", "_tf", "pipeline", "dataset_steps"]),
        "plan": st.lists(st.tuples(st.sampled_from(sorted(MAKERS)), st.sampled_from(PLACES)), min_size=1, max_size=3),
        "wrapper": st.sampled_from(sorted(WRAPPERS)),
    }
)


def build(shape: dict[str, Any]) -> Any:
    REGISTRY.clear()
    return WRAPPERS[shape["wrapper"]](shape["kind"](shape["name"], shape["plan"]))


def states() -> list[Any]:
    return [torch.get_rng_state(), np.random.get_state(), random.getstate()]


def check(shape: dict[str, Any], workers: int) -> None:
    seed_everything(5)
    RETURNED.clear()
    plain = list(DataLoader(build(shape), 2, num_workers=workers))
    after, real = states(), list(RETURNED)
    seed_everything(5)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(Path(folder) / "lineage", strict=True) as run:
            recorded = list(run.loader(DataLoader(build(shape), 2, num_workers=workers)))
        # Promise 1: items and random numbers are the same.
        assert difference(plain, recorded) is None
        assert difference(after, states()) is None
        with audit.open(Path(folder) / "lineage") as store:
            query = "SELECT index, list(digest ORDER BY stage) FROM stage_outputs GROUP BY index ORDER BY index"
            digests = dict(store.sql(query).fetchall())
            items = [row for x, _ in recorded for row in x]
            assert len(digests) == len(items)
            for index, item in enumerate(items):
                # The item is what the last stage returned, or the run says that it is not.
                assert digests[index][-1] == values.digest(item) or run.run.unrecorded
            if not workers:
                # Every output was returned by a transform, and every transform's output is there.
                found = [digest for index in sorted(digests) for digest in digests[index][1:]]
                assert set(found) <= set(real)
                assert set(real) <= set(found) or run.run.unrecorded
            replayed = store.replay(dataset=build(shape))
            assert (replayed.checked, replayed.identical) == (len(items), len(items)), replayed.different


@settings(max_examples=examples(15), deadline=None)
@given(shapes)
def test_what_is_recorded_is_what_happened(shape: dict[str, Any]) -> None:
    check(shape, workers=0)


@pytest.mark.workers
@pytest.mark.parametrize("wrapper", ["plain", "outer of subset"])
def test_the_same_in_forked_workers(wrapper: str) -> None:
    plan = [("sometimes", "dict"), ("shift", "closure"), ("noise", "slot")]
    check({"kind": Batching, "name": "aug", "plan": plan, "wrapper": wrapper}, workers=2)
