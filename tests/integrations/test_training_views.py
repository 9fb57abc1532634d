"""The views on training against rows worked out by hand, and against numpy."""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from training_rows import WrittenVisit, view, views, write_training

import audit
from audit.store.training_views import VIEWS


@pytest.mark.slow
def test_the_store_has_these_views(tmp_path: Path) -> None:
    """Under their own names, and with the same rows."""
    write_training(tmp_path, answers(0, True, False))
    with audit.open(tmp_path) as store:
        for name in VIEWS:
            assert store.sql(f"FROM {name}").dicts() == view(tmp_path, name)


RIGHT, WRONG = (2.0, 0.0, 0.0), (0.0, 2.0, 0.0)
HIGH = math.exp(2) / (math.exp(2) + 2)
LOW = 1 / (math.exp(2) + 2)


def answers(index: int, *right: bool) -> list[tuple[int, str, list[WrittenVisit]]]:
    """One sample of class 0 over epochs."""
    return [(epoch, "train", [WrittenVisit(index, 0, RIGHT if ok else WRONG)]) for epoch, ok in enumerate(right)]


def by_index(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    assert len({row["index"] for row in rows}) == len(rows)
    return {row["index"]: row for row in rows}


def test_forgetting_by_hand(tmp_path: Path) -> None:
    write_training(
        tmp_path,
        [*answers(0, True, True, True), *answers(1, False, True, False, True, False), *answers(2, False, False)],
    )
    found = by_index(view(tmp_path, "forgetting"))
    chosen = ("epochs", "visits", "forgetting_events", "first_learned_epoch", "never_learned", "last_correct")
    assert [found[0][name] for name in chosen] == [3, 3, 0, 0, False, True]
    assert [found[1][name] for name in chosen] == [5, 5, 2, 1, False, False]
    assert [found[2][name] for name in chosen] == [2, 2, 0, None, True, False]
    assert (found[1]["source"], found[1]["label"], found[1]["phase"]) == ("001.png", 0, "train")


def test_forgetting_within_one_epoch(tmp_path: Path) -> None:
    """A sample drawn three times in an epoch, right, wrong, right, was forgotten once."""
    visits = [WrittenVisit(7, 0, logits, visit) for visit, logits in enumerate((RIGHT, WRONG, RIGHT))]
    write_training(tmp_path, [(0, "train", visits), (1, "train", [WrittenVisit(7, 0, WRONG)])])
    row = by_index(view(tmp_path, "forgetting"))[7]
    assert (row["forgetting_events"], row["epochs"], row["visits"]) == (2, 2, 4)


def test_cartography_by_hand(tmp_path: Path) -> None:
    write_training(tmp_path, [*answers(0, True, True), *answers(1, False, True)])
    found = by_index(view(tmp_path, "cartography"))
    assert found[0]["confidence"] == pytest.approx(HIGH)
    assert found[0]["variability"] == pytest.approx(0)
    assert found[1]["confidence"] == pytest.approx((HIGH + LOW) / 2)
    assert found[1]["variability"] == pytest.approx((HIGH - LOW) / 2)
    assert [found[n]["correctness"] for n in (0, 1)] == [1.0, 0.5]


def test_every_epoch_weighs_the_same(tmp_path: Path) -> None:
    """Three right visits in one epoch and one wrong visit in the next: half right, not three quarters."""
    visits = [WrittenVisit(0, 0, RIGHT, visit) for visit in range(3)]
    write_training(tmp_path, [(0, "train", visits), (1, "train", [WrittenVisit(0, 0, WRONG)])])
    row = by_index(view(tmp_path, "cartography"))[0]
    assert (row["correctness"], row["epochs"], row["visits"]) == (0.5, 2, 4)
    assert row["confidence"] == pytest.approx((HIGH + LOW) / 2)
    assert by_index(view(tmp_path, "aum"))[0]["aum"] == pytest.approx(0.0)


def test_aum_by_hand(tmp_path: Path) -> None:
    rows = [(0, (1.0, 4.0, 2.5)), (1, (1.0, 4.0, 2.5)), (2, (1.0, 4.0, 2.5))]
    write_training(tmp_path, [(0, "train", [WrittenVisit(label, label, logits) for label, logits in rows])])
    found = by_index(view(tmp_path, "aum"))
    assert [found[n]["aum"] for n in range(3)] == pytest.approx([-3.0, 1.5, -1.5])


def test_aum_of_a_single_logit(tmp_path: Path) -> None:
    write_training(tmp_path, [(0, "train", [WrittenVisit(0, 0, (1.5,)), WrittenVisit(1, 1, (1.5,))])])
    found = by_index(view(tmp_path, "aum"))
    assert [found[n]["aum"] for n in range(2)] == pytest.approx([-1.5, 1.5])


def test_phases_and_splits_are_distinguished(tmp_path: Path) -> None:
    """Item 0 of the training set and item 0 of the validation set are different samples."""
    write_training(tmp_path, [(0, "train", [WrittenVisit(0, 0, WRONG)]), (0, "eval", [WrittenVisit(0, 0, RIGHT, 1)])])
    rows = view(tmp_path, "forgetting", "ORDER BY phase")
    assert [(row["phase"], row["never_learned"], row["forgetting_events"]) for row in rows] == [
        ("eval", False, 0),
        ("train", True, 0),
    ]


def test_what_is_not_finite_is_wrong_and_left_out_of_means(tmp_path: Path) -> None:
    nan = float("nan")
    write_training(
        tmp_path, [(0, "train", [WrittenVisit(0, 0, RIGHT)]), (1, "train", [WrittenVisit(0, 0, (nan, 0.0, 0.0))])]
    )
    assert by_index(view(tmp_path, "forgetting"))[0]["forgetting_events"] == 1
    row = by_index(view(tmp_path, "cartography"))[0]
    assert row["confidence"] == pytest.approx(HIGH)
    assert row["correctness"] == 0.5
    assert by_index(view(tmp_path, "aum"))[0]["aum"] == pytest.approx(2.0)


@pytest.mark.slow
@pytest.mark.parametrize("label", [-2, -1, 3, 99])
def test_a_label_out_of_range_has_no_margin(tmp_path: Path, label: int) -> None:
    """A negative index would count from the end of a list, and name some other class."""
    write_training(tmp_path, [(0, "train", [WrittenVisit(0, label, RIGHT), WrittenVisit(1, 0, RIGHT)])])
    assert by_index(view(tmp_path, "cartography"))[0]["confidence"] is None
    assert by_index(view(tmp_path, "aum"))[0]["aum"] is None
    assert by_index(view(tmp_path, "forgetting"))[0]["never_learned"]


visited = st.lists(
    st.tuples(
        st.integers(0, 4),  # epoch
        st.integers(0, 3),  # index
        st.lists(st.floats(-8, 8, width=32), min_size=3, max_size=3),
    ),
    min_size=1,
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(visited)
def test_against_numpy(drawn: list[tuple[int, int, list[float]]]) -> None:
    """Whatever was answered, over any epochs and any number of visits."""
    counts: dict[tuple[int, int], int] = defaultdict(int)
    visits: list[tuple[int, WrittenVisit]] = []
    for epoch, index, logits in sorted(drawn, key=lambda row: row[0]):
        visits.append((epoch, WrittenVisit(index, index % 3, tuple(logits), counts[epoch, index])))
        counts[epoch, index] += 1
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "lineage"
        write_training(
            store, [(n, "train", [seen for epoch, seen in visits if epoch == n]) for n in {e for e, _ in visits}]
        )
        names = ("forgetting", "cartography", "aum")
        found = {name: by_index(rows) for name, rows in zip(names, views(store, names), strict=True)}
    for index in {seen.index for _, seen in visits}:
        mine = [(epoch, seen) for epoch, seen in visits if seen.index == index]
        expected = worked_out(mine)
        for name, columns in expected.items():
            row = found[name][index]
            for column, value in columns.items():
                assert row[column] == pytest.approx(value, abs=1e-5), (name, column)


def worked_out(mine: list[tuple[int, WrittenVisit]]) -> dict[str, dict[str, Any]]:
    """The three views of one sample by numpy."""
    epochs = np.array([epoch for epoch, _ in mine])
    label = mine[0][1].label
    logits = np.array([seen.logits for _, seen in mine], dtype=np.float32).astype(np.float64)
    exponent = np.exp(logits - logits.max(axis=1, keepdims=True))
    probability = exponent / exponent.sum(axis=1, keepdims=True)
    right = logits.argmax(axis=1) == label  # the first of equals
    margin = logits[:, label] - np.delete(logits, label, axis=1).max(axis=1)
    each = [epochs == epoch for epoch in np.unique(epochs)]
    mean = np.array([probability[at, label].mean() for at in each])
    return {
        "forgetting": {
            "forgetting_events": int((right[:-1] & ~right[1:]).sum()),
            "first_learned_epoch": int(epochs[right].min()) if right.any() else None,
            "never_learned": not right.any(),
            "visits": len(mine),
        },
        "cartography": {
            "confidence": mean.mean(),
            "variability": mean.std(),
            "correctness": np.mean([right[at].mean() for at in each]),
            "epochs": len(each),
        },
        "aum": {"aum": np.mean([margin[at].mean() for at in each])},
    }


def steady(count: int, seed: int = 0) -> list[tuple[int, str, list[WrittenVisit]]]:
    """Steps of two samples each whose loss moves a little around 0.24."""
    noise = np.random.default_rng(seed).normal(0, 0.05, (count, 2))
    return [
        (n // 20, "train", [WrittenVisit(2 * n + k, 0, (2.0 + float(noise[n, k]), 0.0, 0.0)) for k in range(2)])
        for n in range(count)
    ]


def test_a_spike_leads_to_its_files(tmp_path: Path) -> None:
    steps = steady(40)
    steps[25] = (1, "train", [WrittenVisit(50, 0, (-9.0, 0.0, 0.0)), WrittenVisit(51, 0, RIGHT)])
    write_training(tmp_path, steps)
    rows = view(tmp_path, "spikes")
    assert [(row["step"], row["epoch"], row["reason"], row["source"]) for row in rows] == [
        (25, 1, "high", "050.png"),
        (25, 1, "high", "051.png"),
    ]
    first, second = rows
    assert first["loss"] == pytest.approx(9.69, abs=0.01)
    assert first["step_loss"] == pytest.approx((first["loss"] + second["loss"]) / 2, rel=1e-6)
    assert first["typical_loss"] == pytest.approx(0.24, abs=0.02)
    assert first["threshold"] < first["step_loss"]


@pytest.mark.parametrize(("bad", "reason"), [(float("nan"), "nan"), (float("inf"), "nan"), (-float("inf"), "inf")])
def test_a_loss_that_is_not_finite_is_a_spike_at_any_step(tmp_path: Path, bad: float, reason: str) -> None:
    write_training(
        tmp_path, [(0, "train", [WrittenVisit(103, 0, (bad, 0.0, 0.0)), WrittenVisit(104, 0, RIGHT)]), *steady(15)]
    )
    rows = view(tmp_path, "spikes")
    assert [(row["step"], row["index"], row["reason"]) for row in rows] == [(0, 103, reason), (0, 104, reason)]
    assert rows[0]["correct"] is False


def test_one_bad_step_does_not_hide_the_next(tmp_path: Path) -> None:
    nan = float("nan")
    steps = steady(40)
    steps[20] = (1, "train", [WrittenVisit(40, 0, (nan, 0.0, 0.0))])
    steps[21] = (1, "train", [WrittenVisit(42, 0, (-9.0, 0.0, 0.0))])
    write_training(tmp_path, steps)
    assert [(row["step"], row["reason"]) for row in view(tmp_path, "spikes")] == [(20, "nan"), (21, "high")]


@settings(max_examples=examples(5))
@given(st.integers(0, 10_000))
def test_a_steady_loss_has_no_spikes(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "lineage"
        write_training(store, steady(60, seed))
        assert view(store, "spikes") == []


def test_a_falling_loss_has_no_spikes(tmp_path: Path) -> None:
    """The first steps lie far above the later ones, and are not spikes: only what came before counts."""
    write_training(tmp_path, [(0, "train", [WrittenVisit(n, 0, (n / 10, 0.0, 0.0))]) for n in range(50)])
    assert view(tmp_path, "spikes") == []


def test_evaluation_is_compared_with_evaluation(tmp_path: Path) -> None:
    """A validation loss far above the training loss is not a spike."""
    steps: list[tuple[int, str, list[WrittenVisit]]] = []
    for n, step in enumerate(steady(40)):
        steps.append(step)
        steps.append((n // 20, "eval", [WrittenVisit(1000 + n, 0, WRONG)]))
    write_training(tmp_path, steps)
    assert view(tmp_path, "spikes") == []
