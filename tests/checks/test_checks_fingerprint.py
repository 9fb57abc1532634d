"""Rows reported to be the same without a join are the same, and rows that are not are reported apart."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from checks_contracts import outcome_of
from checks_world import grade, world
from hypothesis import given
from hypothesis import strategies as st

from audit.checks.context import Context
from audit.checks.integrity import alignment
from audit.checks.shared.fingerprint import have_same_rows
from audit.checks.shared_facts import RunFacts
from audit.store.read.reader import Reader

Rows = list[tuple[int, str | None]]
_ROWS = st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.sampled_from("abc"))), max_size=6)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    reader = Reader(str(world(20).write(tmp_path_factory.mktemp("fingerprint") / "lineage")))
    return Context(RunFacts(reader, reader.run()), {})


def _relation(rows: Rows) -> str:
    listed = ", ".join(f"({number}, {'NULL' if text is None else repr(text)})" for number, text in rows)
    return f"(FROM (VALUES {listed or '(0, NULL)'}) AS _(a, b){'' if rows else ' WHERE false'})"


@given(first=_ROWS, second=_ROWS, shuffled=st.randoms())
def test_the_same_rows_and_no_others_have_the_same_fingerprint(
    context: Context, first: Rows, second: Rows, shuffled: Random
) -> None:
    assert have_same_rows(context, "a, b", _relation(first), _relation(second)) == (Counter(first) == Counter(second))
    again = list(first)
    shuffled.shuffle(again)
    assert have_same_rows(context, "a, b", _relation(first), _relation(again))


@given(st.lists(st.tuples(st.integers(0, 50), st.text("ab", max_size=3)), min_size=2, max_size=12))
def test_values_exchanged_between_two_rows_are_reported(context: Context, rows: list[tuple[int, str]]) -> None:
    """A hash that joins columns by exclusive or would not see it."""
    (a, first), (b, second), *rest = rows
    exchanged = [(a, second), (b, first), *rest]
    assert have_same_rows(context, "a, b", _relation(list(rows)), _relation(list(exchanged))) == (
        Counter(rows) == Counter(exchanged)
    )


def test_a_shift_is_found_where_some_stretches_stand_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "_ENOUGH", 100)
    made = world(600)
    rows = made.tables["predictions"]
    before = [row["logits"] for row in rows]
    for number, row in enumerate(rows):
        grade(row, row["label"], before[number - 1])
    found = outcome_of(made.write(tmp_path / "lineage"), "alignment")
    shifts = [finding for finding in found.findings if "shifted by one" in finding.message]
    assert len(shifts) == 1
    places = int(shifts[0].message.split(" places")[0].rsplit(" ", 1)[1])
    assert 50 < places < 300, "a part of the six hundred was looked at"


@pytest.mark.parametrize("apart", [1, 7, 10**6])
def test_a_visit_recorded_twice_is_found_however_far_apart_indices_lie(tmp_path: Path, apart: int) -> None:
    made = world(30)
    for rows in made.tables.values():
        for row in rows:
            row |= {"index": row["index"] * apart} if "index" in row else {}
    made.run.expected = None
    made.tables["samples"].append(dict(made.sample(4 * apart)))
    found = outcome_of(made.write(tmp_path / "lineage"), "coverage")
    assert [finding.index for finding in found.findings if "recorded 2 times" in finding.message] == [4 * apart]
