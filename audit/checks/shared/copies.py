"""Pictures of a run that are copies of each other, found once for all checks that ask."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from audit.checks.context import Context
from audit.checks.shared.hashes import Array, dhash
from audit.checks.shared.lookalikes import MOST_IN_PAIRS, Lookalike, find_lookalikes, thumbnail
from audit.checks.shared.picture_alignment import SIDE
from audit.checks.shared.pictures import Picture, pictures

#: A picture whose levels vary less than this has no detail to compare.
_FAINT = 6.0
#: The side of the small coloured pictures.
_SMALL = 16


@dataclass(frozen=True, slots=True)
class Signatures:
    """Pictures with enough detail to compare, without their pixels, and a thumbnail of each."""

    pictures: list[Picture]
    thumbnails: Array
    #: Of each: how much red and blue exceed green, the level and the variation of the border, and the colours of the corners.
    looks: Array
    #: The shorter side of each, in pixels.
    sides: Array

    @property
    def hashes(self) -> Array | None:
        """Return the perceptual hash of each; None if there are so few pictures that all pairs are compared."""
        return _hashes(self.thumbnails) if len(self.pictures) > MOST_IN_PAIRS else None


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
        seen: list[tuple[Picture, Array, bytes, int]] = []
        for picture in pictures(context, most):
            image = picture.image
            seen.append((replace(picture, image=None), thumbnail(image), _colours(image), min(image.size)))
        context.facts.cache[key] = _signatures(seen)
    found: Signatures = context.facts.cache[key]
    return found


def _signatures(seen: list[tuple[Picture, Array, bytes, int]]) -> Signatures:
    """Return the signatures of those pictures that have some detail, in order of index."""
    thumbs = np.stack([found[1] for found in seen]) if seen else np.empty((0, SIDE, SIDE), np.uint8)
    detailed = [n for n in range(len(seen)) if thumbs[n].std() >= _FAINT]
    detailed.sort(key=lambda n: seen[n][0].index)
    small = np.frombuffer(b"".join(seen[n][2] for n in detailed), np.uint8).reshape(-1, _SMALL, _SMALL, 3)
    sides = np.array([seen[n][3] for n in detailed], dtype=np.int64)
    return Signatures([seen[n][0] for n in detailed], thumbs[detailed], _looks(small), sides)


def _colours(image: Any) -> bytes:
    """Return a picture as 16×16 colours, each the mean of its part."""
    from PIL import Image

    small: bytes = image.convert("RGB").resize((_SMALL, _SMALL), Image.Resampling.BOX).tobytes()
    return small


def _looks(small: Array) -> Array:
    """Return for each picture (n×16×16×3) the balance of its colours, its border, and the colours of its corners."""
    means = small.mean(axis=(1, 2), dtype=np.float32)
    border = np.concatenate([small[:, 0], small[:, -1], small[:, 1:-1, 0], small[:, 1:-1, -1]], axis=1)
    border = border.reshape(len(small), -1).astype(np.float32)
    corners = small[:, [0, 0, -1, -1], [0, -1, 0, -1]].reshape(len(small), 12)
    shown = (means[:, 0] - means[:, 1], means[:, 2] - means[:, 1], border.mean(axis=1), border.std(axis=1))
    return np.column_stack([*shown, corners]).astype(np.float32)


def _hashes(thumbnails: Array) -> Array:
    from PIL import Image

    return np.array([dhash(Image.fromarray(thumb)) for thumb in thumbnails], dtype=np.uint64)


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
    both_thumbnails = np.concatenate([there.thumbnails, here.thumbnails])
    hashes = _hashes(both_thumbnails) if len(both_thumbnails) > MOST_IN_PAIRS else None
    pairs = find_lookalikes(both_thumbnails, hashes, sides=np.concatenate([there.sides, here.sides]))
    edge = len(there.pictures)
    both = [*there.pictures, *here.pictures]
    found = [_copy(both, both, pair) for pair in pairs if pair.first < edge <= pair.second]
    return [one for one in found if one.picture.digest is None or one.picture.digest != one.original.digest]


def _copy(first: list[Picture], second: list[Picture], pair: Lookalike) -> Copy:
    return Copy(second[pair.second], first[pair.first], pair.similarity, pair.mirrored)
