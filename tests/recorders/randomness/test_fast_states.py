"""The states of generators: taken quickly, and always the ones that the generators say they have."""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.recorders.files.origin import relative_path
from audit.recorders.randomness.generator_search import GeneratorSearch
from audit.recorders.randomness.generator_states import global_sources, list_held_sources
from audit.recorders.randomness.watch import Watch
from audit.values import native as loops

_DRAWS = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "many": lambda: random.sample(range(10_000), 700),
    "numpy": np.random.rand,
    "numpy normal": np.random.randn,
    "numpy many": lambda: np.random.rand(700),
    "torch": lambda: torch.rand(1),
    "torch normal": lambda: torch.randn(1),
    "nothing": lambda: None,
}


class _Holder:
    def __init__(self) -> None:
        self.random = random.Random(3)
        self.torch = torch.Generator().manual_seed(4)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(sorted(_DRAWS)), max_size=12))
def test_a_state_brings_back_the_same_numbers(draws: list[str]) -> None:
    sources = global_sources()
    for name in draws:
        states = [source.take() for source in sources]
        drawn = [repr(_DRAWS[name]()), repr(_DRAWS["gauss"]()), repr(_DRAWS["numpy normal"]())]
        after = [source.take() for source in sources]
        for source, state in zip(sources, states, strict=True):
            source.put(state)
        assert [source.take() for source in sources] == states
        assert [repr(_DRAWS[name]()), repr(_DRAWS["gauss"]()), repr(_DRAWS["numpy normal"]())] == drawn
        assert [source.take() for source in sources] == after


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(sorted(_DRAWS)), max_size=6))
def test_a_visit_drew_from_the_generators_whose_state_changed(draws: list[str]) -> None:
    watch = Watch(_Holder())
    watch.begin()
    before = (random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state())
    for name in draws:
        _DRAWS[name]()
    changed = {
        "random": random.getstate() != before[0],
        "numpy": repr(np.random.get_state(legacy=False)) != repr(before[1])
        or bool((np.random.get_state(legacy=False)["state"]["key"] != before[1]["state"]["key"]).any()),
        "torch": not torch.equal(torch.get_rng_state(), before[2]),
    }
    assert {name for name, _ in watch.drawn_states()} == {name for name, is_changed in changed.items() if is_changed}


class _ManyHolder(_Holder):
    def __init__(self) -> None:
        super().__init__()
        self.legacy = np.random.RandomState(5)
        self.numpy = np.random.default_rng(6)


_HELD_DRAWS = {
    "held:random": lambda held: held.random.gauss(0, 1),
    "held:torch": lambda held: torch.randn(1, generator=held.torch),
    "held:legacy": lambda held: held.legacy.randn(),
    "held:numpy": lambda held: held.numpy.normal(),
}


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.lists(st.sampled_from(sorted({**_DRAWS, **_HELD_DRAWS})), max_size=3), max_size=8))
def test_each_of_several_visits_has_its_own_states(visits: list[list[str]]) -> None:
    """The memory of generators is compared between visits; what the generators themselves say decides."""
    holder = _ManyHolder()
    watch = Watch(holder)
    # Fresh ones, which have nothing to compare with and ask the generators.
    sources = {source.name: source for source in (*global_sources(), *list_held_sources(GeneratorSearch(holder)))}
    for draws in visits:
        before = {name: source.take() for name, source in sources.items()}
        watch.begin()
        for name in draws:
            _DRAWS[name]() if name in _DRAWS else _HELD_DRAWS[name](holder)
        changed = {name: state for name, state in before.items() if sources[name].take() != state}
        assert dict(watch.drawn_states()) == changed


def test_draws_that_come_back_to_their_position_are_noticed() -> None:
    """A twister has 624 words: after so many draws its position is the one before, and its array another one."""
    watch = Watch(_Holder())
    for name, draw in (
        ("random", lambda: [random.getrandbits(32) for _ in range(624)]),
        ("numpy", lambda: np.random.bytes(4 * 624)),
        ("torch", lambda: torch.randint(0, 2**31, (624,), dtype=torch.int32)),
    ):
        draw()
        watch.begin()
        draw()
        assert [found for found, _ in watch.drawn_states()] == [name]


@pytest.mark.skipif(loops.native is None or sys.platform != "linux", reason="the compiled loops read memory")
def test_the_memory_of_global_generators_is_known() -> None:
    for source in global_sources():
        assert source.memory is not None, source.name


def test_without_compiled_loops_every_generator_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "native", None)
    watch = Watch(_Holder())
    for draw in (torch.rand, np.random.rand, lambda _: random.random()):
        watch.begin()
        assert watch.drawn_states() == []
        draw(1)
        assert len(watch.drawn_states()) == 1


def test_generators_that_objects_hold_are_read_where_they_lie() -> None:
    holder = _Holder()
    sources = {source.name: source for source in list_held_sources(GeneratorSearch(holder))}
    for name, draw in (("held:random", holder.random.random), ("held:torch", holder.torch.seed)):
        before: Any = sources[name].take()
        assert sources[name].take() is before
        draw()
        assert sources[name].take() != before


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(["a", "b c", "..", ".", "", ".hidden", "ä"]), min_size=1, max_size=6))
def test_a_path_below_its_root_is_what_the_library_says(parts: list[str]) -> None:
    root = "/data/set"
    for path in ("/".join([root, *parts]), "/" + "/".join(parts), root + "/".join(parts)):
        assert relative_path(path, root) == os.path.relpath(os.path.abspath(path), root)
