"""What follows from probabilities, against sorting them: of equal ones the first comes first."""

from __future__ import annotations

import math

import pytest
import torch

from audit.recorders.model.predictions import prediction_columns


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
