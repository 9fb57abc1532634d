"""Groups of pictures that are turned, or that JPEG compressed before."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from audit.checks.shared.jpeg_blocks import block_contrast, find_blocky
from audit.checks.shared.turned_groups import find_turn

Array = np.ndarray[Any, Any]


def digits() -> tuple[Array, Array]:
    """Two halves of the digits as thumbnails of 32×32."""
    pixels = (load_digits().images * 15).astype(np.uint8).repeat(4, axis=1).repeat(4, axis=2)
    order = np.random.default_rng(0).permutation(len(pixels))
    return pixels[order[:1200]], pixels[order[1200:]]


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        (lambda p: p.swapaxes(1, 2), "transposed (rows and columns exchanged)"),
        (lambda p: p[:, ::-1], "upside down"),
        (lambda p: p[:, ::-1, ::-1], "upside down"),
        (lambda p: p[:, :, ::-1], "mirrored from left to right"),
        (lambda p: np.rot90(p, 1, (1, 2)), "turned by 90 degrees to the left"),
        (lambda p: np.rot90(p, -1, (1, 2)), "turned by 90 degrees to the right"),
    ],
)
def test_a_group_that_is_turned_is_found(turn: Any, said: str) -> None:
    train, test = digits()
    found = find_turn(train, np.ascontiguousarray(turn(test)))
    assert found is not None
    assert found.description == said


def test_a_group_of_the_same_kind_is_not_turned() -> None:
    train, test = digits()
    rng = np.random.default_rng(1)
    for size in (60, 200, 597):
        assert find_turn(train, test[rng.permutation(len(test))[:size]]) is None
    assert find_turn(train[:30], test) is None  # too few to tell


def photographs(samples: int) -> Array:
    rng = np.random.default_rng(2)
    small = [Image.fromarray(rng.integers(0, 256, (5, 5), dtype=np.uint8)) for _ in range(samples)]
    soft = np.stack([np.asarray(one.resize((32, 32), Image.Resampling.BICUBIC)) for one in small]).astype(int)
    return (soft + rng.integers(-12, 13, soft.shape)).clip(0, 255).astype(np.uint8)


def compress(pixels: Array) -> Array:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=40)
    return np.asarray(Image.open(file))


def test_blocks_of_jpeg_are_found_in_the_pixels_of_one_class() -> None:
    pixels, labels = photographs(300), np.arange(300) % 4
    assert find_blocky(block_contrast(pixels), labels, 0.4) is None
    pixels[labels == 2] = [compress(one) for one in pixels[labels == 2]]
    found = find_blocky(block_contrast(pixels), labels, 0.4)
    assert found is not None
    assert found[0] == 2
