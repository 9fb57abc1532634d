"""Search for single pixels that give the label: a mark at one place, or a label that was hidden in some bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from audit.checks.base import Finding
from audit.checks.shared.picture_measures import Measures
from audit.checks.shared.pixel_guess import TellingPixel, blank_background, telling_bit, telling_pixel
from audit.checks.shared.shortcut import NAMED, RIGHT, LabelledSamples, Shortcut, halves_of

#: Single pixels are judged in at most this many pictures.
_PICTURES = 1_000


def judge_pixels(given: LabelledSamples, measures: list[Measures]) -> Iterable[Shortcut]:
    """Judge single pixels: all of small pictures of one size, with their lowest bits; of others those of thumbnails."""
    measures = [one for one in measures if one.picture.sample in given.label_of]
    shapes = Counter(one.pixels.shape for one in measures if one.pixels is not None)
    shape, count = shapes.most_common(1)[0] if shapes else ((), 0)
    if 2 * count >= len(measures):
        measures = [one for one in measures if one.pixels is not None and one.pixels.shape == shape]
    chosen = [measures[n] for n in range(0, len(measures), -(-len(measures) // _PICTURES) or 1)]
    if len(chosen) < given.required_samples:
        return
    if 2 * count >= len(measures):
        # A mark on one class changes its pixels to one level; a hidden label is in a level or in its lowest bits.
        pixels = blank_background(np.stack([one.pixels for one in chosen if one.pixels is not None]))
        # The last view is for marks that were compressed or scaled with their picture.
        high, low, coarse = (np.where(pixels < 0, -1, part) for part in (pixels >> 1, pixels & 15, pixels >> 3))
        views = [
            (high, 128, "the value of the pixel"),
            (low, 16, "the lowest bits of the pixel"),
            (coarse, 32, "the value of the pixel"),
        ]
    else:
        pixels = blank_background(np.stack([one.thumbnail for one in chosen]))
        views = [(np.where(pixels < 0, -1, pixels >> 2), 64, "in a thumbnail of 32×32 the pixel")]
    labels = given.labels([one.picture.sample for one in chosen])
    halves = halves_of([one.picture.index for one in chosen])
    for view, bins, words in views:
        flat = view.reshape(len(view), -1)
        found = telling_pixel(flat, labels, halves, bins, given.context.options["explained"], (NAMED, RIGHT))
        if found is not None:
            row, column = np.unravel_index(found.place, view.shape[1:])[:2]
            called = f"{words} in row {row}, column {column}"
            yield called, _pixel_finding(given, found, called)
            return
    if 2 * count >= len(measures) and (hidden := telling_bit(pixels.reshape(len(pixels), -1), labels)) is not None:
        row, column = np.unravel_index(hidden.place, pixels.shape[1:])[:2]
        called = f"bit {hidden.bit} of the pixel in row {row}, column {column}"
        yield (
            called,
            Finding(
                f"{called[0].upper()}{called[1:]} is set in all pictures of {hidden.set_in} classes and in none of {hidden.unset_in} others: "
                "something about the label was hidden there; a model may learn that instead of the picture.",
                stage=0,
                value=1.0,
                sql=given.evidence("pixels"),
            ),
        )


def _pixel_finding(given: LabelledSamples, found: TellingPixel, called: str) -> Finding:
    shown = f"{called[0].upper()}{called[1:]} alone"
    if found.label is None:
        said = f"{shown} gives the label of {found.share:.0%} of {found.total:,} pictures, where guessing gives {found.guessed:.0%}"
    else:
        said = (
            f"{shown} names {found.right:,} of {found.total:,} pictures of the class {given.show_class(found.label)}, and is right in "
            f"{found.right:,} of {found.named:,} cases"
        )
    return Finding(
        f"{said}: a mark, or a label that was hidden there; a model may learn that instead of the picture.",
        stage=0,
        value=found.share,
        threshold=found.guessed if found.label is None else NAMED,
        sql=given.evidence("pixels"),
    )
