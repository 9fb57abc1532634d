"""The fast way to the facts of a common tensor gives what the general way gives."""

from __future__ import annotations

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from audit import values
from audit.values.tensor import TensorKind

_KIND = TensorKind()
_DTYPES = [torch.float32, torch.uint8, torch.float64, torch.int64, torch.bool, torch.bfloat16, torch.complex64]


@st.composite
def _tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    if shape and draw(st.booleans()):
        shape[-1] *= draw(
            st.sampled_from([7, 64, 4096])
        )  # beyond a block of the digest, and beyond a piece of one pass
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    tensor = (torch.rand(shape, generator=generator) * 300 - 20).to(draw(st.sampled_from(_DTYPES)))
    if tensor.dim() > 1 and draw(st.booleans()):
        tensor = tensor.transpose(0, 1)
    if tensor.is_floating_point() and tensor.numel() and draw(st.booleans()):
        tensor = tensor.clone()
        tensor[(0,) * tensor.dim()] = draw(st.sampled_from([float("nan"), float("inf"), -0.0]))
    return tensor.requires_grad_() if tensor.dtype is torch.float32 and draw(st.booleans()) else tensor


@settings(max_examples=examples(100), deadline=None)
@given(_tensors())
def test_fast_facts_are_the_facts(tensor: torch.Tensor) -> None:
    fast = _KIND.observe_fast(tensor)
    if fast is not None:
        assert repr(fast) == repr(_KIND.observe(tensor))


@settings(max_examples=examples(100), deadline=None)
@given(_tensors())
def test_digests_of_rows_are_those_of_each_row(tensor: torch.Tensor) -> None:
    found = values.row_digests(tensor)
    if found is not None:
        assert found == [values.digest(row) for row in tensor]


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_common_tensors_take_the_fast_way(dtype: torch.dtype) -> None:
    from audit.values import native

    if native.native is None:
        pytest.skip("the C extension is not built here")
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype)
    assert _KIND.observe_fast(tensor) is not None
    assert values.row_digests(tensor) is not None


def test_tensors_of_other_kinds_take_the_general_way() -> None:
    pairs = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert pairs.is_neg()
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    odd = [pairs, nested, torch.ones(3, device="meta"), torch.eye(3).to_sparse(), torch.ones(2, 3).t(), torch.empty(0)]
    assert [_KIND.observe_fast(one) for one in [*odd, torch._efficientzerotensor((3,)), "text"]] == [None] * 8
