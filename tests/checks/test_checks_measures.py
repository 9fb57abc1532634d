"""Measures of many pictures at once equal those of one picture; so do predictions from a property."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from audit.checks.shared.label_guess import betrayed_class, bins_of, predict, raised_class, separate_common_values
from audit.checks.shared.lookalike_search import candidate_pairs
from audit.checks.shared.lookalikes import find_lookalikes, thumbnail
from audit.checks.shared.picture_grids import spread
from audit.checks.shared.picture_measures import Measures, measure_pictures
from audit.checks.shared.pictures import Picture


def _measured(images: list[Image.Image]) -> list[Measures]:
    found = measure_pictures(Picture(n, f"{n}.png", None, image) for n, image in enumerate(images))
    return sorted(found, key=lambda one: one.picture.index)


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("size", [(8, 8), (28, 28), (32, 32), (61, 47), (96, 30), (2, 40)])
def test_thumbnails_and_colours_are_those_of_pillow(mode: str, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    shape = (*size[::-1], 3) if mode == "RGB" else size[::-1]
    images = [Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)) for _ in range(7)]
    for one, image in zip(_measured(images), images, strict=True):
        small = np.asarray(image.convert("RGB").resize((16, 16), Image.Resampling.BOX))
        assert np.abs(one.thumbnail.astype(int) - thumbnail(image)).max() <= 1
        assert np.abs(one.colours.astype(int) - small).max() <= 1
        assert one.side == min(size)


def test_large_and_unusual_pictures_are_measured_too() -> None:
    plain = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 200, 3), dtype=np.uint8))
    images = [plain, plain.convert("RGBA"), plain.convert("P"), plain.convert("1"), plain.convert("L")]
    found = _measured(images)
    assert [one.colour for one in found] == [True, False, False, False, False]
    for one, image in zip(found, images, strict=True):
        assert (one.thumbnail == thumbnail(image)).all()
        assert one.picture.image is None


@pytest.mark.parametrize("size", [(28, 28), (200, 120)])
def test_arrays_are_measured_as_pictures_are(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    for shape in (size, (*size, 3)):
        pixels = rng.integers(0, 256, (3, *shape), dtype=np.uint8)
        as_arrays = sorted(
            measure_pictures(Picture(n, f"{n}.png", None, one) for n, one in enumerate(pixels)),
            key=lambda m: m.picture.index,
        )
        for one, other in zip(as_arrays, _measured([Image.fromarray(array) for array in pixels]), strict=True):
            assert (one.thumbnail == other.thumbnail).all()
            assert (one.colours == other.colours).all()
            assert (one.side, one.colour, one.grey) == (other.side, other.colour, other.grey)
            assert (one.sharpness, one.noise) == (other.sharpness, other.noise)
            assert (one.pixels is None) == (other.pixels is None)


def test_the_spread_is_the_standard_deviation() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (5, 31, 17), dtype=np.uint8)
    assert np.allclose(spread(pictures), pictures.std(axis=(1, 2)), atol=1e-3)
    assert spread(np.full((1, 32, 32), 255, np.uint8))[0] < 0.5
    assert spread(np.empty((0, 32, 32), np.uint8)).shape == (0,)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_pictures_have_no_copies(count: int) -> None:
    plain, mirrored = candidate_pairs(np.zeros((count, 32, 32), np.uint8))
    assert plain.shape == mirrored.shape == (0, 2)
    assert find_lookalikes(np.zeros((count, 32, 32), np.uint8)) == []


@pytest.mark.parametrize("deviation", [0.0, 3.0, 10.0])
def test_noise_is_measured_whatever_the_picture_shows(deviation: float) -> None:
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 64)
    images = []
    for n in range(20):
        shown = 128 + 60 * np.sin(2 * np.pi * (n / 4 * x[:, None] + x)) + 40 * (x[None] > n / 20)
        images.append(Image.fromarray((shown + rng.normal(0, deviation, (64, 64))).clip(0, 255).astype(np.uint8)))
    noise = np.median([one.noise for one in _measured(images)])
    assert abs(noise - deviation) <= 0.6 + 0.2 * deviation


Values = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from([1, 2, 3]), st.floats(-5, 5), st.just("name")),
        st.integers(0, 3),
        st.booleans(),
    ),
    min_size=1,
    max_size=60,
)


def _expected(bins: list[int], labels: list[int], halves: list[bool]) -> tuple[float, float]:
    """The definition, sample by sample."""
    right = guessed = 0
    for learn in (True, False):
        known = [(b, label) for b, label, half in zip(bins, labels, halves, strict=True) if half == learn]
        if not known:
            continue
        common = _most(Counter(label for _, label in known))
        for b, label, half in zip(bins, labels, halves, strict=True):
            if half != learn:
                own = Counter(other for c, other in known if c == b)
                right += (_most(own) if own else common) == label
                guessed += common == label
    return right / len(labels), guessed / len(labels)


def _most(counts: Counter[int]) -> int:
    return max(counts, key=lambda label: (counts[label], -label))


@settings(max_examples=examples(60))
@given(Values)
def test_labels_are_predicted_by_the_commonest_of_each_bin(rows: list[tuple[Any, int, bool]]) -> None:
    values, labels, halves = ([row[n] for row in rows] for n in range(3))
    bins = bins_of(values)
    assert predict(bins, np.array(labels), np.array(halves)) == _expected(bins.tolist(), labels, halves)
    assert [b == -1 for b in bins.tolist()] == [value is None for value in values]
    assert len(separate_common_values(values, bins)) == len(values)


def test_a_number_that_one_class_shares_betrays_it() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 800)
    values = np.where(labels == 2, 0.5, rng.random(800)).tolist()
    found = betrayed_class(separate_common_values(values, bins_of(values)), labels, rng.random(800) < 0.5, 0.75, 0.85)
    assert found is not None
    assert found[0] == 2
    assert betrayed_class(bins_of(rng.random(800).tolist()), labels, rng.random(800) < 0.5, 0.75, 0.85) is None


def test_a_class_without_low_values_is_raised_and_one_that_is_high_on_average_is_not() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 400)
    values = rng.exponential(2, 400)
    found = raised_class((values + 4 * (labels == 2)).tolist(), labels, 0.5)
    assert found is not None
    assert found[0] == 2
    assert raised_class((values * (1 + 2 * (labels == 2))).tolist(), labels, 0.5) is None
    assert raised_class(values.tolist(), labels, 0.5) is None
    assert raised_class([0.0] * 400, labels, 0.5) is None
