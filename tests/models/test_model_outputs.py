"""Logits are found in every form in which they are clear, and refused in every other."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.models import GoogLeNetOutputs, InceptionOutputs

from audit.errors import UnclearOutput
from audit.models.outputs import logits_of, probabilities_of
from audit.models.task_outputs import is_losses

LOGITS = torch.arange(12.0).reshape(4, 3)


class ModelOutput(OrderedDict[str, Any]):
    """As Hugging Face's: a mapping whose entries are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass
class Scored:
    scores: torch.Tensor
    features: list[torch.Tensor]


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        (LOGITS,),
        [LOGITS],
        [(LOGITS,)],
        (torch.tensor(0.5), LOGITS),  # loss, logits
        (LOGITS, None, "text"),
        (LOGITS, torch.zeros(4, 8, 7, 7)),  # a feature map cannot be the logits
        {"logits": LOGITS, "features": torch.zeros(4, 512)},
        {"out": LOGITS},
        {"scores": LOGITS, "loss": torch.tensor(1.0)},
        ModelOutput(loss=torch.tensor(1.0), logits=LOGITS, hidden_states=torch.zeros(4, 9)),
        Answer(LOGITS, torch.zeros(4, 9)),
        InceptionOutputs(LOGITS, torch.zeros(4, 3)),
        GoogLeNetOutputs(LOGITS, torch.zeros(4, 3), torch.zeros(4, 3)),
        (LOGITS, (torch.zeros(2, 4, 8), torch.zeros(2, 4, 8))),  # states of an LSTM
        {"heads": {"scores": LOGITS}, "loss": torch.tensor(1.0)},
        Scored(LOGITS, [torch.zeros(4, 8, 7, 7)]),
    ],
)
def test_clear_outputs(output: object) -> None:
    assert logits_of(output) is LOGITS
    assert logits_of(output, batch=4) is LOGITS


@pytest.mark.parametrize(
    "output",
    [
        None,
        3.0,
        "text",
        (),
        {},
        (LOGITS, LOGITS),
        {"a": LOGITS, "b": torch.zeros(4, 5)},
        (LOGITS, torch.zeros(4)),
        (LOGITS, [torch.zeros(4, 3)]),  # the deeper one may be the logits too
        {"a": LOGITS, "b": {"c": (torch.zeros(4, 5), None)}},
        Scored(LOGITS, [torch.zeros(4)]),
        torch.tensor(1.0),
        torch.zeros(4, 0),
        torch.zeros(4, 3, 2),
        torch.zeros(4, 3, 8, 8),
        torch.zeros(4, 3, 1, 1),
        torch.zeros(4, 3, dtype=torch.long),
        torch.zeros(4, 3, dtype=torch.bool),
        {"logits": torch.zeros(4, 3, 8, 8)},
    ],
)
def test_unclear_outputs(output: object) -> None:
    with pytest.raises(UnclearOutput) as caught:
        logits_of(output)
    assert caught.value.hint


def test_first_axis_must_be_the_batch() -> None:
    with pytest.raises(UnclearOutput, match="batch of 1"):
        logits_of(torch.zeros(10), batch=1)  # a squeezed (1, 10) is not ten single logits


@given(
    st.integers(1, 6), st.integers(2, 7), st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])
)
def test_probabilities_sum_to_one(rows: int, classes: int, dtype: torch.dtype) -> None:
    logits = torch.randn(rows, classes).to(dtype)
    probabilities = probabilities_of(logits_of(logits, batch=rows))
    assert probabilities.shape == (rows, classes)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(rows, dtype=probabilities.dtype))
    assert torch.equal(probabilities_of(logits.double()).argmax(1), logits.double().argmax(1))


@given(st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=8), st.booleans())
def test_single_logit_is_a_sigmoid_pair(values: list[float], column: bool) -> None:
    output = torch.tensor(values)
    logits = logits_of(output.unsqueeze(1) if column else output)
    assert logits.shape == (len(values), 1)
    probabilities = probabilities_of(logits)
    assert torch.equal(probabilities[:, 1], torch.sigmoid(output))
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(values)))
    assert probabilities.argmax(1).tolist() == (torch.sigmoid(output) > 0.5).long().tolist()
    assert torch.equal(probabilities, probabilities_of(output))


def test_non_finite_logits_are_not_repaired() -> None:
    assert probabilities_of(torch.tensor([[float("nan"), 1.0]])).isnan().all()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"loss_a": torch.ones(()), "loss_b": torch.ones(1)}, True),
        ({"bbox_regression": torch.ones(()), "classification": torch.ones(())}, True),
        ({"a": torch.ones(1), "b": torch.ones(1)}, False),
        ({"loss": torch.ones(3)}, False),
        ({}, False),
        (torch.ones(()), False),
    ],
)
def test_losses_are_numbers_of_the_whole_batch(output: object, expected: bool) -> None:
    assert is_losses(output) == expected


def recursive() -> dict[str, object]:
    output: dict[str, object] = {}
    output["again"] = output
    return output


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (torch.ones(2, 3).to_sparse(), "a sparse tensor"),
        (torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]), "a nested tensor"),
        (torch.ones(2, 3, device="meta"), "a meta tensor"),
        ({"a": torch.ones(2, 3).to_sparse(), "b": torch.nested.nested_tensor([torch.ones(3)])}, "no entry can be"),
        (recursive(), "no entry can be"),
    ],
    ids=["sparse", "nested", "meta", "entries", "recursive"],
)
def test_outputs_whose_numbers_cannot_be_read(output: object, said: str) -> None:
    with pytest.raises(UnclearOutput, match=said):
        logits_of(output, batch=2)
