"""What checks know of the pictures of a run without their pixels: measured in one pass for all checks that ask."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from audit.checks.base import Skip
from audit.checks.context import Context
from audit.checks.shared.hashes import Array, dhash
from audit.checks.shared.lookalikes import MOST_IN_PAIRS
from audit.checks.shared.picture_alignment import SIDE
from audit.checks.shared.picture_grids import blocks, spread
from audit.checks.shared.picture_measures import SMALL, Measures, measure_pictures
from audit.checks.shared.pictures import Picture, pictures

#: A picture whose levels vary less than this has no detail to compare.
_FAINT = 6.0
#: The columns of `looks` that follow the colours of the corners.
SATURATION, TINT = 16, 17


@dataclass(frozen=True)
class PictureSignatures:
    """Pictures with enough detail to compare, without their pixels, and a thumbnail of each."""

    pictures: list[Picture]
    thumbnails: Array
    #: Of each: how much red and blue exceed green, the level and the variation of the border, the colours of the corners, the saturation, and the tint.
    looks: Array
    #: The shorter side of each, in pixels.
    sides: Array

    @cached_property
    def details(self) -> dict[str, Array]:
        """Return two measures of each picture by the words for them: blur, noise and compression change both."""
        found = [sharpness_of(block.astype(np.float32)) for block in blocks(self.thumbnails)]
        detail, sharpness = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return {"the amount of detail": detail, "the sharpness": sharpness}

    @cached_property
    def hashes(self) -> Array | None:
        """Return the perceptual hash of each; None if there are so few pictures that all pairs are compared."""
        return hashes_of(self.thumbnails) if len(self.pictures) > MOST_IN_PAIRS else None


def sharpness_of(grey: Array) -> tuple[Array, Array]:
    """Return the logarithm of each picture's detail, and of the share of it between neighbouring pixels."""
    down, across = np.diff(grey, axis=1)[:, :, :-1], np.diff(grey, axis=2)[:, :-1, :]
    detail: Array = np.log1p(np.sqrt((down**2 + across**2).mean(axis=(1, 2))))
    fine = np.abs(
        grey[:, 1:-1, 1:-1] * 4 - grey[:, :-2, 1:-1] - grey[:, 2:, 1:-1] - grey[:, 1:-1, :-2] - grey[:, 1:-1, 2:]
    )
    sharpness: Array = np.log1p(fine.mean(axis=(1, 2))) - detail
    return detail, sharpness


def signatures(context: Context, most: int) -> PictureSignatures:
    """Return the signatures of at most `most` pictures (0: all), in order of index."""
    seen = _measures(context, most)
    key = ("signatures", most, context.narrowing)
    if key not in context.facts.cache:
        context.facts.cache[key] = _signatures(seen)
    found: PictureSignatures = context.facts.cache[key]
    return found


def exact_measures(context: Context, few: int, most: int = 10_000) -> list[Measures]:
    """Return the measures of undistorted pictures, in order of index.

    These are the pictures that all checks share (`most`) if previews did not distort them; else `few` that are read
    again. Raise Skip if no undistorted picture is there.
    """
    shared = _measures(context, most)
    if shared and all(one.picture.exact for one in shared):
        return shared
    return _measures(context, few, exact=True)


def _measures(context: Context, most: int, *, exact: bool = False) -> list[Measures]:
    """Return the measures of at most `most` pictures in order of index, read once; each check that asks gets the notes."""
    key = ("measures", most, exact, context.narrowing)
    if key not in context.facts.cache:
        before, context.notes = context.notes, []
        try:
            found = sorted(measure_pictures(pictures(context, most, exact=exact)), key=lambda one: one.picture.index)
        except Skip as skipped:
            context.facts.cache[key] = skipped
        else:
            context.facts.cache[key] = found, context.notes
        finally:
            context.notes = before
    known: Skip | tuple[list[Measures], list[str]] = context.facts.cache[key]
    if isinstance(known, Skip):
        raise Skip(str(known))
    for note in known[1]:
        if note not in context.notes:
            context.note(note)
    return known[0]


def _signatures(seen: list[Measures]) -> PictureSignatures:
    """Return the signatures of those pictures that have some detail."""
    thumbs = np.stack([one.thumbnail for one in seen]) if seen else np.empty((0, SIDE, SIDE), np.uint8)
    detailed = np.flatnonzero(np.concatenate([spread(block) for block in blocks(thumbs)]) >= _FAINT)
    small = np.stack([seen[n].colours for n in detailed]) if len(detailed) else np.empty((0, SMALL, SMALL, 3), np.uint8)
    sides = np.array([seen[n].side for n in detailed], dtype=np.int64)
    return PictureSignatures([seen[n].picture for n in detailed], thumbs[detailed], _looks(small), sides)


def _looks(small: Array) -> Array:
    """Return for each picture (n×16×16×3) the balance of its colours, its border, the colours of its corners, its saturation, and by which share green is below red and blue."""
    means = small.mean(axis=(1, 2), dtype=np.float32)
    border = np.concatenate([small[:, 0], small[:, -1], small[:, 1:-1, 0], small[:, 1:-1, -1]], axis=1)
    border = border.reshape(len(small), -1).astype(np.float32)
    corners = small[:, [0, 0, -1, -1], [0, -1, 0, -1]].reshape(len(small), 12)
    shown = (means[:, 0] - means[:, 1], means[:, 2] - means[:, 1], border.mean(axis=1), spread(border))
    # One channel after the other: a reduction over the short last axis takes ten times as long.
    red, green, blue = (small[..., n] for n in range(3))
    apart = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    saturation = apart.mean(axis=(1, 2), dtype=np.float32)
    tint = (shown[0] + shown[1]) / np.maximum(means.sum(axis=1), 1)
    return np.column_stack([*shown, corners, saturation, tint]).astype(np.float32)


def hashes_of(thumbnails: Array) -> Array:
    """Return the perceptual hash of each thumbnail."""
    from PIL import Image

    return np.array([dhash(Image.fromarray(thumb)) for thumb in thumbnails], dtype=np.uint64)
