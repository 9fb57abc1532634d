"""Pictures of a run that are copies of each other, found once for all checks that ask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from audit.checks.context import Context
from audit.checks.shared.hashes import Array, dhash
from audit.checks.shared.lookalikes import Lookalike, find_lookalikes, thumbnail
from audit.checks.shared.picture_alignment import SIDE
from audit.checks.shared.pictures import Picture, pictures

#: A picture whose levels vary less than this has no detail to compare.
_FAINT = 6.0


@dataclass(frozen=True, slots=True)
class Signatures:
    """Pictures with enough detail to compare, without their pixels, and a thumbnail and a hash of each."""

    pictures: list[Picture]
    thumbnails: Array
    hashes: Array
    #: Of each: how much red and blue exceed green, the level and the variation of the border, and the colours of the corners.
    looks: Array
    #: The shorter side of each, in pixels.
    sides: Array


@dataclass(frozen=True, slots=True)
class Copy:
    """A picture that is a copy of an earlier one, though their bytes differ."""

    picture: Picture
    original: Picture
    similarity: float
    mirrored: bool

    @property
    def said(self) -> str:
        """Return how they are alike, for messages."""
        return "is a mirrored copy of" if self.mirrored else "looks the same as"


def signatures(context: Context, most: int) -> Signatures:
    """Return the signatures of at most `most` pictures (0: all), in order of index."""
    key = ("signatures", most, context.narrowing)
    if key not in context.facts.cache:
        seen: list[tuple[Picture, Any, int, tuple[float, ...], int]] = []
        for picture in pictures(context, most):
            thumb = thumbnail(picture.image)
            if thumb.std() >= _FAINT:
                image = picture.image
                seen.append((replace(picture, image=None), thumb, dhash(image), _looks(image), min(image.size)))
        seen.sort(key=lambda found: found[0].index)
        thumbs = np.stack([found[1] for found in seen]) if seen else np.empty((0, SIDE, SIDE), np.uint8)
        hashes = np.array([found[2] for found in seen], dtype=np.uint64)
        looks = np.array([found[3] for found in seen], dtype=np.float32).reshape(len(seen), 16)
        sides = np.array([found[4] for found in seen], dtype=np.int64)
        context.facts.cache[key] = Signatures([found[0] for found in seen], thumbs, hashes, looks, sides)
    found: Signatures = context.facts.cache[key]
    return found


def _looks(image: Any) -> tuple[float, ...]:
    small = np.asarray(image.convert("RGB").resize((16, 16)), dtype=np.float32)
    red, green, blue = small.mean(axis=(0, 1))
    border = np.concatenate([small[0], small[-1], small[1:-1, 0], small[1:-1, -1]])
    shown = (red - green, blue - green, border.mean(), border.std())
    return *(float(value) for value in shown), *_corners(image)


def _corners(image: Any) -> Iterator[float]:
    """Yield the mean red, green and blue of each corner, a sixteenth of the width and height."""
    wide, high = max(1, image.width // 16), max(1, image.height // 16)
    for top in (0, image.height - high):
        for left in (0, image.width - wide):
            corner = image.crop((left, top, left + wide, top + high)).convert("RGB")
            yield from np.asarray(corner, dtype=np.float32).mean(axis=(0, 1)).tolist()


def copies(context: Context, most: int, distance: int = 3) -> list[Copy]:
    """Return the copies within a run, the surest first; exact ones, which other checks report, are left out."""
    key = ("copies", most, distance, context.narrowing)
    if key not in context.facts.cache:
        given = signatures(context, most)
        pairs = (
            find_lookalikes(given.thumbnails, given.hashes, distance, given.sides) if len(given.pictures) > 1 else []
        )
        context.facts.cache[key] = [_copy(given.pictures, given.pictures, pair) for pair in pairs]
    found: list[Copy] = context.facts.cache[key]
    return [one for one in found if one.picture.digest is None or one.picture.digest != one.original.digest]


def copies_of(context: Context, other: Context, most: int) -> list[Copy]:
    """Return the pictures of this run that are copies of pictures of another run."""
    here, there = signatures(context, most), signatures(other, most)
    if not here.pictures or not there.pictures:
        return []
    pairs = find_lookalikes(
        np.concatenate([there.thumbnails, here.thumbnails]),
        np.concatenate([there.hashes, here.hashes]),
        sides=np.concatenate([there.sides, here.sides]),
    )
    edge = len(there.pictures)
    both = [*there.pictures, *here.pictures]
    found = [_copy(both, both, pair) for pair in pairs if pair.first < edge <= pair.second]
    return [one for one in found if one.picture.digest is None or one.picture.digest != one.original.digest]


def _copy(first: list[Picture], second: list[Picture], pair: Lookalike) -> Copy:
    return Copy(second[pair.second], first[pair.first], pair.similarity, pair.mirrored)
