"""Replay as a property: random pipelines come out bit for bit, and any generator's state can be restored.

The same pipelines in greater number are the campaign (`make campaign`), whose figures are in docs/RELIABILITY.md.
"""

from __future__ import annotations

import functools
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from audit.recorders.randomness.generator_search import GeneratorSearch
from audit.recorders.randomness.seeding import Seeder
from audit.recorders.randomness.watch import Restorer, Watch
from bench.campaign import replay_cases as campaign_cases
from bench.campaign import replay_stages as campaign_stages
from bench.campaign import replays as campaign

#: Pipelines whose workers are spawned take long to start; the campaign has them.
NUMBERS = st.integers(0, 100_000).filter(lambda number: number % 97 != 40)


@pytest.mark.workers
@settings(max_examples=examples(4), phases=[Phase.explicit, Phase.generate])
@example(number=2770)  # a generator made from the worker's seed, recorded without workers and replayed in two
@given(number=NUMBERS)
def test_random_pipelines_come_out_bit_for_bit(number: int) -> None:
    tally = campaign.Tally()
    with tempfile.TemporaryDirectory() as folder:
        images = campaign_cases.make_pictures(Path(folder) / "images", 8)
        sys.path.insert(0, folder)
        try:
            case = campaign_cases.case_of(2, number)
            campaign.judge(case, campaign.replay_case(case, images, Path(folder)), tally)
        finally:
            sys.path.remove(folder)
    assert tally.wrong == []
    assert tally.outputs == tally.identical + tally.explained > 0


def test_every_transform_of_torchvision_is_in_the_campaign() -> None:
    known, hidden = campaign_cases.catalogue()
    assert len(known) > 100
    assert len({entry.name for entry in known}) == len(known)
    assert all(entry.hidden for entry in hidden)


class Owner:
    """Holds one stage, as a dataset does."""

    def __init__(self, stage: Any) -> None:
        self.stage = stage


PLACES = {entry.name: entry for entry in campaign_stages.generator_entries()}


@pytest.mark.parametrize("name", sorted(PLACES))
def test_any_generator_anywhere_is_put_back(name: str) -> None:
    value = torch.zeros(3, 4, 4)
    recorded, again = (Owner(PLACES[name].build(random.Random(0))) for _ in range(2))
    watch, restorer = Watch(recorded), Restorer(again)
    visits: list[tuple[dict[str, Any], Any]] = []
    for _ in range(6):
        watch.begin()
        made = recorded.stage(value)
        visits.append((dict(watch.drawn_states()), made))
    if name != "nn.Module":  # dropout of nothing but zeros
        assert len({float(made.flatten()[0]) for _, made in visits}) == (1 if name == "worker's seed" else 6)
    for number in (4, 0, 5, 2, 2, 1, 3):
        states, made = visits[number]
        if restorer.restore(states):
            again.stage(value)
            assert restorer.restore(states) == []
        assert torch.equal(again.stage(value), made), number


@pytest.mark.parametrize("name", sorted(set(PLACES) - {"nn.Module"}))
def test_any_generator_anywhere_is_seeded_per_visit(name: str) -> None:
    value = torch.zeros(3, 4, 4)

    def visit(owner: Owner, seeder: Seeder, index: int) -> Any:
        seeder(0, index)
        made = owner.stage(value)
        if seeder.has_new_generators():
            seeder(0, index)
            made = owner.stage(value)
        return made

    first, second = (Owner(PLACES[name].build(random.Random(0))) for _ in range(2))
    seeders = Seeder(first, 7), Seeder(second, 7)
    forth = [visit(first, seeders[0], index) for index in range(4)]
    back = [visit(second, seeders[1], index) for index in reversed(range(4))][::-1]
    assert all(torch.equal(a, b) for a, b in zip(forth, back, strict=True))
    assert len({float(made.flatten()[0]) for made in forth}) == 4


DRAWS: dict[str, tuple[Callable[[], Any], list[Callable[[Any], Any]]]] = {
    "Generator": (
        np.random.default_rng,
        [
            lambda g: g.random(),
            lambda g: g.integers(7, dtype=np.uint32),
            lambda g: g.normal(),
            lambda g: g.random(dtype=np.float32),
            lambda g: g.spawn(1)[0].random(),
            lambda g: g.permutation(5).tolist(),
        ],
    ),
    "RandomState": (np.random.RandomState, [lambda g: g.rand(), lambda g: g.randn(), lambda g: g.randint(9)]),
    "Random": (random.Random, [lambda g: g.random(), lambda g: g.gauss(0, 1), lambda g: g.getrandbits(7)]),
    "torch": (
        campaign_stages.torch_generator,
        [
            lambda g: torch.rand((), generator=g).item(),
            lambda g: torch.randn(17, generator=g).tolist(),
            lambda g: torch.randn((), generator=g).item(),
            lambda g: torch.randperm(5, generator=g).tolist(),
            lambda g: torch.empty(1).exponential_(generator=g).item(),
        ],
    ),
    **{
        kind.__name__: (
            functools.partial(lambda kind: np.random.Generator(kind()), kind),
            [lambda g: g.random(), lambda g: g.integers(7, dtype=np.uint32), lambda g: g.normal()],
        )
        for kind in (np.random.Philox, np.random.SFC64, np.random.MT19937, np.random.PCG64DXSM)
    },
}


@settings(max_examples=examples(60))
@given(data=st.data(), kind=st.sampled_from(sorted(DRAWS)))
def test_a_state_taken_anywhere_gives_the_same_draws(data: st.DataObject, kind: str) -> None:
    make, draws = DRAWS[kind]
    sequences = st.lists(st.sampled_from(range(len(draws))), max_size=12)
    before, after, unrelated = data.draw(sequences), data.draw(sequences), data.draw(sequences)
    holder = {"generator": make()}
    for number in before:
        draws[number](holder["generator"])
    watch = Watch(holder)
    watch.begin()
    drawn = [draws[number](holder["generator"]) for number in after]
    states = dict(watch.drawn_states())
    assert set(states) == ({"held:generator"} if after else set())
    other = {"generator": make()}
    for number in unrelated:
        draws[number](other["generator"])
    Restorer(other).restore(states)
    assert [draws[number](other["generator"]) for number in after] == drawn


def test_searching_neither_draws_nor_changes_anything() -> None:
    class Odd:
        """What a search may meet: properties that raise, itself, a huge list, the global generators."""

        def __init__(self) -> None:
            self.me = self
            self.samples = list(range(1_000_000))
            self.globals = [random._inst, np.random.mtrand._rand, torch.default_generator]  # type: ignore[attr-defined]
            self.system = random.SystemRandom()
            self.cache: dict[int, Any] = {}

        @property
        def broken(self) -> Any:
            raise RuntimeError

    odd = Odd()
    before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()
    search = GeneratorSearch(odd)
    assert search.places == []
    for number in range(3):
        odd.cache[number] = object()
        assert search.refresh() == {}
    odd.cache["late"] = random.Random(1)  # type: ignore[index]
    assert list(search.refresh()) in ([], ["cache.late"])
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tobytes() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
