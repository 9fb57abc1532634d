"""Which part holds a sample: never wrong, whatever is kept and forgotten meanwhile."""

from __future__ import annotations

import random
from collections import Counter
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.store.read import index_lookup as lookup
from audit.store.read.index_lookup import IndexLookup


class Parts:
    """Parquet files in memory; counts how often each is opened."""

    def __init__(self, indices: dict[str, list[int | None]]) -> None:
        self.opened: Counter[str] = Counter()
        self._files = {}
        for name, values in indices.items():
            sink = BytesIO()
            pq.write_table(pa.table({"index": pa.array(values, pa.int64())}), sink)
            self._files[name] = sink.getvalue()

    def open(self, name: str) -> BytesIO:
        self.opened[name] += 1
        return BytesIO(self._files[name])


def _no_file(path: str) -> bytes:
    raise FileNotFoundError(path)


_INDICES = st.lists(st.one_of(st.integers(-2, 40), st.integers(2**40, 2**40 + 5), st.none()), max_size=20)


@given(st.lists(_INDICES, min_size=1, max_size=5), st.sampled_from([0, 40, 10**6]), st.randoms())
def test_it_answers_as_a_set_does(parts: list[list[int | None]], most: int, chance: random.Random) -> None:
    names = {f"part {number}": values for number, values in enumerate(parts)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "_MOST_BYTES", most)
        asked = IndexLookup(Parts(names).open, _no_file)
        for _ in range(60):
            name, index = chance.choice(list(names)), chance.choice([*range(-2, 42), 2**40 + 3])
            assert asked.holds(name, index) == (index in names[name]), (name, index)


def test_tables_written_together_are_kept_once_and_most_is_kept_when_not_all_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance = random.Random(0)
    indices = list(range(20_000))
    chance.shuffle(indices)
    shuffled = [sorted(indices[start : start + 500]) for start in range(0, 20_000, 500)]
    names: dict[str, list[int | None]] = {
        f"{table}/{number}": list(values)
        for table in ("samples", "stage_outputs", "predictions")
        for number, values in enumerate(shuffled)
    }
    monkeypatch.setattr(lookup, "_MOST_BYTES", 20_000 * 4)
    parts = Parts(names)
    fits = IndexLookup(parts.open, _no_file)
    for index in chance.sample(indices, 20):
        assert sum(fits.holds(name, index) for name in names) == 3
    assert set(parts.opened.values()) == {1}, "three tables of the same indices take the room of one"
    monkeypatch.setattr(lookup, "_MOST_BYTES", 16_000 * 4)
    parts = Parts(names)
    full = IndexLookup(parts.open, _no_file)
    for index in chance.sample(indices, 20):
        assert sum(full.holds(name, index) for name in names) == 3
    assert parts.opened.total() < len(names) * 20 * 0.7, "not all is forgotten each time"


def test_the_first_question_may_be_about_minus_one() -> None:
    """Items that are asked for by name have this index."""
    asked = IndexLookup(Parts({"a": [-1, 3], "b": [0, 1]}).open, _no_file)
    assert [asked.holds(name, -1) for name in ("a", "b", "a")] == [True, False, True]
