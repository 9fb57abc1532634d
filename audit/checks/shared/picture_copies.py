"""Pictures of a run that are copies of each other, found once for all checks that ask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audit.checks.context import Context
from audit.checks.shared.lookalikes import MOST_IN_PAIRS, Lookalike, find_lookalikes
from audit.checks.shared.picture_signatures import hashes_of, signatures
from audit.checks.shared.pictures import Picture


@dataclass(frozen=True, slots=True)
class Copy:
    """A picture that is a copy of an earlier one, though their bytes differ."""

    picture: Picture
    original: Picture
    similarity: float
    mirrored: bool
    turned: int
    equal_parts: tuple[int, int] | None = None
    tilted: float = 0.0

    @property
    def description(self) -> str:
        """Return how they are alike, for messages."""
        if self.equal_parts is not None:
            equal, parts = self.equal_parts
            return f"has the same pixels in {equal} of {parts} parts, and something else in the others, as"
        if self.tilted:
            return f"is a copy, turned by about {abs(self.tilted):.0f} degrees, of"
        if self.turned:
            return f"is a copy, turned by {self.turned} degrees, of"
        return "is a mirrored copy of" if self.mirrored else "looks the same as"


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
    hashes = hashes_of(both_thumbnails) if len(both_thumbnails) > MOST_IN_PAIRS else None
    pairs = find_lookalikes(both_thumbnails, hashes, sides=np.concatenate([there.sides, here.sides]))
    edge = len(there.pictures)
    both = [*there.pictures, *here.pictures]
    found = [_copy(both, both, pair) for pair in pairs if pair.first < edge <= pair.second]
    return [one for one in found if one.picture.digest is None or one.picture.digest != one.original.digest]


def _copy(first: list[Picture], second: list[Picture], pair: Lookalike) -> Copy:
    picture, original = second[pair.second], first[pair.first]
    return Copy(picture, original, pair.similarity, pair.mirrored, pair.turned, pair.equal_parts, pair.tilted)
