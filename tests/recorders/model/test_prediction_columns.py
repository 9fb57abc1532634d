"""What follows from probabilities, against sorting them: of equal ones the first comes first."""

from __future__ import annotations

import math

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.recorders.model.predictions import prediction_columns
from audit.values import native as loops


@pytest.mark.parametrize("width", [2, 3, 7])
def test_ranks_and_margins_are_those_of_sorted_probabilities(width: int) -> None:
    torch.manual_seed(width)
    # Few distinct values: many of them are equal.
    values = torch.randint(0, 4, (40, width)).float() / 4
    labels = torch.randint(0, width, (40,)).tolist()
    columns = prediction_columns(values, labels, None, "probabilities")
    for row, label, rank, predicted, margin in zip(
        values.tolist(), labels, columns["label_rank"], columns["predicted"], columns["margin"], strict=True
    ):
        order = sorted(range(width), key=lambda place: -row[place])
        assert (predicted, rank) == (order[0], order.index(label) + 1)
        assert margin == row[order[0]] - row[order[1]]


def test_a_row_that_is_not_finite_has_neither_rank_nor_margin() -> None:
    columns = prediction_columns(torch.tensor([[0.25, 0.75], [math.nan, 1.0]]), [0, 1], None, "probabilities")
    assert columns["label_rank"] == [2, None]
    assert columns["margin"] == [0.5, None]
    assert columns["predicted"] == [1, None]


def test_a_single_output_has_two_classes() -> None:
    columns = prediction_columns(torch.tensor([[2.0], [-2.0]]), [1, 1], None, "logits")
    assert columns["predicted"] == [1, 0]
    assert columns["label_rank"] == [1, 2]


def test_of_two_close_logits_the_greater_one_is_predicted() -> None:
    """Their probabilities are the same number in float32."""
    logits = torch.tensor([[0.0, 2.8e-8, -1.0]])
    found = prediction_columns(logits, [0], None)
    assert (found["predicted"], found["label_rank"]) == ([int(logits.argmax())], [2])
    assert found["probabilities"][0, 0] == found["probabilities"][0, 1]
    assert found["correct"] == [False]


numbers = st.floats(width=32) | st.integers(-3, 3).map(float)
labels = st.none() | st.integers(-2, 5) | st.just(2**70)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[float]], list[int | None]]:
    count, width = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=count, max_size=count))
    return rows, draw(st.lists(labels, min_size=count, max_size=count))


@pytest.mark.skipif(loops.native is None, reason="the extension is not compiled")
@settings(max_examples=examples(200), deadline=None)
@given(batch=batches(), kind=st.sampled_from(["logits", "probabilities", "log_probabilities"]), named=st.booleans())
def test_the_compiled_loops_and_numpy_say_the_same(
    batch: tuple[list[list[float]], list[int | None]], kind: str, named: bool
) -> None:
    rows, given_labels = batch
    classes = ["a", "b", "c"] if named else None
    columns = []
    for native in (loops.native, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loops, "native", native)
            try:
                found = prediction_columns(torch.tensor(rows), given_labels, classes, kind)
            except OverflowError:  # a label that fits into no column
                found = {}
        columns.append(
            {name: getattr(column, "tolist", lambda column=column: column)() for name, column in found.items()}
        )
    compiled, plain = columns
    assert compiled.keys() == plain.keys()
    for name, column in compiled.items():
        assert (
            column == pytest.approx(plain[name], nan_ok=True)
            if name == "entropy"
            else repr(column) == repr(plain[name])
        )
