"""Statistics agree with plain float64 numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import value_strategies as make
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from audit import values


def expect(facts: values.Facts, numbers: Any) -> None:
    wide = np.abs(numbers.astype(np.complex128)) if numbers.dtype.kind == "c" else numbers.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    assert facts.zeros == int((numbers == 0).sum())
    assert facts.nonfinite == wide.size - finite.size
    if not finite.size:
        assert facts.min is facts.max is facts.mean is facts.std is None
        return
    low, high = float(finite.min()), float(finite.max())
    assert (facts.min, facts.max) == (low, high)
    spread = max(abs(low), abs(high))
    with np.errstate(over="ignore"):
        mean, std = float(np.mean(finite)), float(np.std(finite))
    if not (math.isfinite(mean) and math.isfinite(std)):
        return
    assert facts.mean == pytest.approx(mean, rel=1e-5, abs=1e-6 * max(std, 1e-9 * spread))
    assert facts.std == pytest.approx(std, rel=1e-5, abs=1e-7 * std + 1e-12 * spread)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(make.tensors)
def test_tensors(tensor: torch.Tensor) -> None:
    facts = values.observe(tensor)
    if not tensor.numel():
        assert facts.mean is None
        assert facts.zeros == 0
        return
    if tensor.dtype in (torch.bfloat16, torch.complex32) or "float8" in str(tensor.dtype):
        tensor = tensor.to(torch.complex64 if tensor.is_complex() else torch.float32)
    expect(facts, tensor.numpy())


@settings(max_examples=examples(60), deadline=None)
@given(make.seeds, st.floats(-1e4, 1e4), st.floats(1e-3, 1e3), st.integers(1, 9000))
def test_float32_with_a_mean_far_from_zero(seed: int, mean: float, std: float, size: int) -> None:
    sample = np.random.default_rng(seed).normal(mean, std, size).astype(np.float32)
    expect(values.observe(sample), sample)
    expect(values.observe(torch.from_numpy(sample)), sample)


@pytest.mark.parametrize(
    "special", [[math.nan], [math.inf, -math.inf], [math.nan, -1.0], [1e38, -1e38, 3e38], [1e-40, 0.0]]
)
def test_special_floats(special: list[float]) -> None:
    sample = np.array(special * 1500, np.float32)
    expect(values.observe(sample), sample)


@pytest.mark.parametrize("mode", make.MODES)
def test_pictures(mode: str) -> None:
    image = make.image(mode, 37, 29, 0)
    expect(values.observe(image), np.asarray(image))


def test_one_odd_element_of_a_large_array_is_seen() -> None:
    sample = np.random.default_rng(0).normal(3, 2, 150_528).astype(np.float32)
    sample[77] = 900
    facts = values.observe(sample)
    assert (facts.max, facts.nonfinite) == (900, 0)
    assert facts.mean == pytest.approx(float(sample.mean(dtype=np.float64)), rel=1e-6)
    sample[77] = math.nan
    assert values.observe(sample).nonfinite == 1


def test_bytes_of_an_rgb_picture_are_three_per_pixel() -> None:
    assert values.observe(Image.new("RGB", (10, 4))).bytes == 120
