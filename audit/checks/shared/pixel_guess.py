"""Whether one pixel tells the label: a mark on the pictures of one class, or a label (or a part of it) that is hidden in a pixel or its lowest bits.

Drawings, digits and products lie on black or white. There a pixel may tell two classes apart by what they show, so that black and white
count for nothing; what lies between them has many values, unless somebody wrote one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from audit.checks.shared.hashes import Array
from audit.checks.shared.significance import FAMILY_Z, wilson

#: Levels from this one on are white; black and white are the ground if they are more than this share of all pixels.
_WHITE, _GROUND = 250, 0.1
#: How many pixels are counted together.
_BLOCK = 64
#: A value names a class if at least this share of the samples that have it, and so many, are of that class.
_PURE, _LEAST = 0.8, 5
#: A bit is fixed in a class if at most this share of its samples differs; a class has at least so many samples.
_FIXED, _OF_A_CLASS = 0.02, 20
#: With more classes the counts of one pixel's values are too few.
_MOST_CLASSES = 64


@dataclass(frozen=True, slots=True)
class TellingPixel:
    """One pixel, and how often its value gives the label; `label` is the one class that it names, None for all."""

    place: int
    right: int
    total: int
    guessed: float
    label: int | None
    #: Of a pixel that names one class: how many samples it names.
    named: int = 0

    @property
    def share(self) -> float:
        """Return the share of the samples (of the class) whose label the pixel gives."""
        return self.right / self.total


def blank_background(pixels: Array) -> Array:
    """Return bytes as numbers, with -1 for black and white where much of the pictures is."""
    ground = (pixels == 0) | (pixels >= _WHITE)
    numbers = pixels.astype(np.int16)
    if ground.mean() > _GROUND:
        numbers[ground] = -1
    return numbers


def telling_pixel(
    pixels: Array, labels: Array, halves: Array, bins: int, explained: float, shares: tuple[float, float]
) -> TellingPixel | None:
    """Return the pixel (n×places, values below `bins`, -1 for none) that tells labels best, learned on one half and tried on the other.

    Its value corrects at least the share `explained` of the errors of guessing; or it names the share `shares[0]` of one class and is right
    in the share `shares[1]` (lower ends of intervals, three standard errors).
    """
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) > _MOST_CLASSES or not halves.any() or halves.all():
        return None
    guessed = float(np.bincount(codes).max() / len(codes))
    for_all: TellingPixel | None = None
    for_one: TellingPixel | None = None
    samples = np.bincount(codes)
    for start, tables in _count_values(pixels, codes, halves, bins, len(classes)):
        first, second = tables
        right = _count_right(first, second) + _count_right(second, first)
        best = int(np.argmax(right))
        if for_all is None or right[best] > for_all.right:
            for_all = TellingPixel(start + best, int(right[best]), len(labels), guessed, None)
        named = _find_named_class(start, tables, classes, samples, guessed, shares)
        if named is not None and (for_one is None or named.share > for_one.share):
            for_one = named
    if (
        for_all is not None
        and (wilson(for_all.right, for_all.total, FAMILY_Z)[0] - guessed) / (1 - guessed) >= explained
    ):
        return for_all
    return for_one


def _count_values(
    pixels: Array, codes: Array, halves: Array, bins: int, classes: int
) -> Iterator[tuple[int, tuple[Array, Array]]]:
    """Yield the first place of each block, and for both halves how often each place has each value in each class."""
    for start in range(0, pixels.shape[1], _BLOCK):
        some = pixels[:, start : start + _BLOCK]
        size = some.shape[1]
        where = (np.arange(size)[None] * (bins + 1) + some + 1) * classes + codes[:, None]
        first, second = (
            np.bincount(where[half].ravel(), minlength=size * (bins + 1) * classes).reshape(size, bins + 1, classes)
            for half in (halves, ~halves)
        )
        first[:, 0] = second[:, 0] = 0
        yield start, (first, second)


def _count_right(learn: Array, tried: Array) -> Array:
    """Return for each place how many samples its values' commonest classes give."""
    given = np.take_along_axis(tried, learn.argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    right: Array = np.where(learn.any(axis=2), given, 0).sum(axis=1)
    return right


def _find_named_class(
    start: int, tables: tuple[Array, Array], classes: Array, samples: Array, guessed: float, shares: tuple[float, float]
) -> TellingPixel | None:
    """Return the place with a value that names one class."""
    size, _, count = tables[0].shape
    places, numbers = np.arange(size)[:, None], np.arange(count)[None]
    hits, named = np.zeros((size, count), np.int64), np.zeros((size, count), np.int64)
    for learn, tried in (tables, tables[::-1]):
        value = learn.argmax(axis=1)
        most, total = learn[places, value, numbers], learn.sum(axis=2)[places, value]
        pure = (most >= _LEAST) & (most >= _PURE * total)
        hits += np.where(pure, tried[places, value, numbers], 0)
        named += np.where(pure, tried.sum(axis=2)[places, value], 0)
    place, number = np.unravel_index(np.argmax(hits / np.maximum(samples, 1)), hits.shape)
    found = TellingPixel(
        start + int(place),
        int(hits[place, number]),
        int(samples[number]),
        guessed,
        int(classes[number]),
        int(named[place, number]),
    )
    enough = (
        wilson(found.right, found.total, FAMILY_Z)[0] >= shares[0] and wilson(found.right, found.named)[0] >= shares[1]
    )
    return found if enough else None


@dataclass(frozen=True, slots=True)
class TellingBit:
    """One bit of one pixel that is always set in some classes and never in all others."""

    place: int
    bit: int
    #: How many classes have it set, and how many do not.
    set_in: int
    unset_in: int


def telling_bit(pixels: Array, labels: Array) -> TellingBit | None:
    """Return one of the three lowest bits of a place (n×places of bytes, -1 for none) that divides the classes; None if there is none.

    What pictures show never fixes the lowest bits. Each class must have `_OF_A_CLASS` samples, so that no bit does so by chance.
    """
    codes = np.unique(labels, return_inverse=True)[1]
    counts = np.bincount(codes)
    enough = np.flatnonzero(counts >= _OF_A_CLASS)
    if len(enough) < 2:
        return None
    members = (codes == enough[:, None]).astype(np.float32)
    known = members @ (pixels >= 0).astype(np.float32)
    for bit in range(3):
        share = members @ ((pixels >= 0) & (pixels >> bit & 1 == 1)).astype(np.float32) / np.maximum(known, 1)
        fixed = ((share <= _FIXED) | (share >= 1 - _FIXED)) & (known >= _OF_A_CLASS)
        high = (fixed & (share > 0.5)).sum(axis=0)
        places = np.flatnonzero(fixed.all(axis=0) & (high > 0) & (high < len(enough)))
        if len(places):
            place = int(places[0])
            return TellingBit(place, bit, int(high[place]), len(enough) - int(high[place]))
    return None
