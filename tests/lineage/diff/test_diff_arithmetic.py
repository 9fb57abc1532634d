"""The pure parts of a diff: McNemar's test, the alignment of pipelines, the size of a difference."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.lineage.diff.mcnemar import _log_tail, p_value
from audit.lineage.diff.stage_alignment import AlignmentStep, align, parameter_changes
from audit.records import Stage


@given(st.integers(0, 400), st.integers(0, 400))
def test_the_p_value_is_the_exact_binomial_tail(regressions: int, fixes: int) -> None:
    total, fewer = regressions + fixes, min(regressions, fixes)
    tail = Fraction(2 * sum(math.comb(total, k) for k in range(fewer + 1)), 2**total)
    assert p_value(regressions, fixes) == pytest.approx(float(min(tail, Fraction(1))), rel=1e-12)
    assert p_value(regressions, fixes) == p_value(fixes, regressions)


@given(st.integers(0, 1500), st.integers(0, 1500))
def test_large_counts_agree_with_whole_numbers(regressions: int, fixes: int) -> None:
    total, fewer = regressions + fixes, min(regressions, fixes)
    if 2 * fewer != total:
        assert min(1.0, _log_tail(total, fewer)) == pytest.approx(p_value(regressions, fixes), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize(
    ("regressions", "fixes", "expected"),
    [
        (0, 0, 1.0),
        (5, 5, 1.0),
        (1, 0, 1.0),
        (10, 0, 2 / 1024),
        (8, 2, 0.109375),
        (20_000, 20_001, 1.0),
        (30_000, 10, 0.0),
    ],
)
def test_known_values(regressions: int, fixes: int, expected: float) -> None:
    assert p_value(regressions, fixes) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_million_flips_take_no_time_and_stay_probabilities() -> None:
    assert 0 <= p_value(500_000, 501_000) <= 1
    # A normal curve says 0.317; so many flips are nearly one.
    assert p_value(500_000, 501_000) == pytest.approx(0.318, abs=0.002)
    with pytest.raises(ValueError, match="negative"):
        p_value(-1, 3)


def pipeline(*names: str) -> list[Stage]:
    """A stage for each name; "Resize:3" has a setting."""
    stages = [Stage(0, "0", "load", "audit.load", "{}")]
    for number, text in enumerate(names, 1):
        name, _, setting = text.partition(":")
        stages.append(Stage(number, str(number), name, f"lib.{name}", f'{{"n": "{setting}"}}', False, "c"))
    return stages


def reported(steps: list[AlignmentStep]) -> list[tuple[str, str]]:
    return [(step.change, step.name) for step in steps if step.change != "same"]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (("R", "C", "N"), ("R", "C", "N"), []),
        (("R", "C", "N"), ("R", "N"), [("removed", "C")]),
        (("R", "N"), ("R", "C", "N"), [("added", "C")]),
        (("R", "N"), ("R", "N", "N"), [("added", "N")]),
        (("R:1", "N"), ("R:2", "N"), [("changed", "R")]),
        (("R", "C", "N"), ("R", "D", "N"), [("replaced", "C")]),
        (("R", "C", "N"), ("C", "R", "N"), [("moved", "R"), ("moved", "R")]),
        (("N:1", "C", "N:2"), ("C", "N:2"), [("removed", "N")]),
        ((), ("R",), [("added", "R")]),
        (("T",), ("P", "D"), [("replaced", "T"), ("added", "D")]),
    ],
)
def test_alignment(a: tuple[str, ...], b: tuple[str, ...], expected: list[tuple[str, str]]) -> None:
    found = reported(align(pipeline(*a), pipeline(*b)))
    # Of two stages that changed places either may be the one that moved.
    assert found == expected or [change for change, _ in found] == [change for change, _ in expected] == ["moved"] * 2


@given(*[st.lists(st.sampled_from(["R", "R:2", "C", "N", "X"]), max_size=7)] * 2)
def test_a_walk_visits_every_stage_once_and_in_order(a: list[str], b: list[str]) -> None:
    ours, theirs = pipeline(*a), pipeline(*b)
    steps = align(ours, theirs)
    assert [step.a for step in steps if step.a] == ours
    assert [step.b for step in steps if step.b] == theirs
    assert [step.number for step in steps] == list(range(len(steps)))
    assert all(step.a and step.b for step in steps if step.change in ("same", "changed", "replaced"))
    assert (steps[-1].at_a, steps[-1].at_b) == (ours[-1].stage, theirs[-1].stage)
    assert [(step.at_b, step.at_a) for step in align(theirs, ours)] == [(step.at_a, step.at_b) for step in steps]


def test_the_same_code_in_another_module_is_the_same_stage() -> None:
    ours = [Stage(0, "0", "load", "audit.load"), Stage(1, "1", "crop", "train.crop", "{}", False, "abc")]
    theirs = [Stage(0, "0", "load", "audit.load"), Stage(1, "1", "crop", "serve.crop", "{}", False, "abc")]
    assert [step.change for step in align(ours, theirs)] == ["same", "same"]


def test_target_stages_are_aligned_apart() -> None:
    target = Stage(2, "target.1", "R", "lib.R", "{}")
    steps = align([*pipeline("R"), target], pipeline("R"))
    assert [(step.change, step.is_target) for step in steps] == [("same", False), ("same", False), ("removed", True)]
    assert (steps[-1].at_a, steps[-1].at_b) == (2, None)


def test_parameters_that_are_no_json_are_compared_as_text() -> None:
    a, b = (Stage(1, "1", "R", "lib.R", text) for text in ("{broken", '{"n": 1}'))
    assert {change["parameter"] for change in parameter_changes(a, b)} == {"", "n"}
    assert parameter_changes(a, a) == []
