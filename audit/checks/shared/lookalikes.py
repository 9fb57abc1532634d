"""Find pictures that are copies of each other: re-encoded, resized, brightened, cropped a little, mirrored, turned or covered.

Two small grey pictures are copies if one, shifted, scaled by a few percent, blurred and changed in its levels, explains
the other almost completely. Candidates come from all pairs of thumbnails (lookalike_search.py), or from perceptual
hashes where there are too many pictures for that. They are aligned exactly (picture_alignment.py). Copies of which a part
was covered are found by what is left of them (covered_search.py), and those that were turned by a few degrees by their middle
(tilted_search.py).

How much must be explained depends on the dataset: two different handwritten ones are more alike than two photographs.
The limit is such that, by the number of pairs just below it, less than one false pair is expected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.checks.shared.covered_search import covered_pairs
from audit.checks.shared.hashes import Array, near_pairs
from audit.checks.shared.lookalike_search import candidate_pairs
from audit.checks.shared.picture_alignment import COMPARED, SIDE, measure_unexplained
from audit.checks.shared.tilted_search import tilted_pairs
from audit.checks.shared.turned_search import find_turned_pairs

#: Up to this many pictures all pairs are compared.
MOST_IN_PAIRS = 20_000
#: The most pairs that perceptual hashes name.
_MOST_HASHED = 6_000
#: The share of a picture that its copy leaves unexplained at most; between it and twice it lie pairs that are not copies.
_UNEXPLAINED_SHARE = 0.015
#: Below the tail, the number of false pairs falls with about this power of the unexplained share (MNIST's first 10,000).
_POWER = 3.75
#: Where most pairs are not copies, a copy leaves at most this share of what the nearest of them leaves unexplained.
_NEAREST_SHARE = 0.4
#: The number of false pairs that are expected at the limit.
_EXPECTED_FALSE = 0.3


@dataclass(frozen=True, slots=True)
class Lookalike:
    """Two pictures by their places, the earlier first; `similarity` is the explained share."""

    first: int
    second: int
    similarity: float
    mirrored: bool
    #: By how many degrees the second is turned to the left.
    turned: int = 0
    #: If a part was covered or replaced: how many parts with detail are equal, and how many there are.
    equal_parts: tuple[int, int] | None = None
    #: By how many degrees one is turned against the other, if it is a few.
    tilted: float = 0.0


def thumbnail(image: Any) -> Array:
    """Return a picture as 32×32 grey levels."""
    from PIL import Image

    grey = image.convert("L")
    smooth = Image.Resampling.BILINEAR if min(grey.size) >= SIDE else Image.Resampling.BICUBIC
    return np.asarray(grey.resize((SIDE, SIDE), smooth), dtype=np.uint8)


def find_lookalikes(
    thumbnails: Array, hashes: Array | None = None, distance: int = 3, sides: Array | None = None
) -> list[Lookalike]:
    """Return the pairs of copies among n thumbnails (n×32×32), the surest first.

    `hashes` are the pictures' perceptual hashes, for the case that there are too many for all pairs. `sides` are the shorter
    sides of the pictures: of those with fewer pixels than are compared, more must agree.
    """
    found: list[tuple[Array, Array]] = []
    for mirrored, pairs in enumerate(_candidates(thumbnails, hashes, distance)):
        second = thumbnails[pairs[:, 1]]
        found.append((pairs, measure_unexplained(thumbnails[pairs[:, 0]], second[:, :, ::-1] if mirrored else second)))
    limit = _limit(np.concatenate([left for _, left in found]))
    turned = find_turned_pairs(thumbnails)
    shown = np.ones(len(thumbnails)) if sides is None else np.minimum(1, np.asarray(sides) / COMPARED) ** 2
    best: dict[tuple[int, int], Lookalike] = {}
    for mirrored, (pairs, left) in enumerate(found):
        for (first, second), rest in zip(pairs.tolist(), left.tolist(), strict=True):
            known = best.get((first, second))
            if rest <= limit * min(shown[first], shown[second]) and (known is None or known.similarity < 1 - rest):
                best[first, second] = Lookalike(first, second, 1 - rest, bool(mirrored))
    for pairs, quarters in turned:
        second = np.rot90(thumbnails[pairs[:, 1]], -quarters, axes=(1, 2))
        left = measure_unexplained(thumbnails[pairs[:, 0]], second)
        for (first, other), rest in zip(pairs.tolist(), left.tolist(), strict=True):
            if rest <= limit * min(shown[first], shown[other]) and (first, other) not in best:
                best[first, other] = Lookalike(first, other, 1 - rest, False, 90 * quarters)
    for pair in covered_pairs(thumbnails, sides):
        parts = (pair.equal, pair.parts)
        found_parts = Lookalike(pair.first, pair.second, pair.equal / pair.parts, False, equal_parts=parts)
        best.setdefault((pair.first, pair.second), found_parts)
    for tilted in _find_tilted(thumbnails, shown):
        best.setdefault((tilted.first, tilted.second), tilted)
    return sorted(best.values(), key=lambda one: (-one.similarity, one.first, one.second))


def _find_tilted(thumbnails: Array, shown: Array) -> Iterator[Lookalike]:
    """Yield the copies that were turned by a few degrees; with too many pictures for all pairs they are not looked for."""
    if not 1 < len(thumbnails) <= MOST_IN_PAIRS:
        return
    pairs, left, turns = tilted_pairs(thumbnails)
    limit = _limit(left)
    for (first, second), rest, turn in zip(pairs.tolist(), left.tolist(), turns.tolist(), strict=True):
        if rest <= limit * min(shown[first], shown[second]):
            yield Lookalike(first, second, 1 - rest, False, tilted=turn)


def _candidates(thumbnails: Array, hashes: Array | None, distance: int) -> tuple[Array, Array]:
    """Return the pairs that may be copies, and mirrored copies."""
    if len(thumbnails) <= MOST_IN_PAIRS:
        return candidate_pairs(thumbnails)
    none = np.empty((0, 2), np.int64)
    return (none if hashes is None else near_pairs(hashes, distance)[:_MOST_HASHED]), none


def _limit(left: Array) -> float:
    """Return the largest unexplained share at which few false pairs are expected."""
    below, beyond = (
        int(((left > low) & (left <= low + _UNEXPLAINED_SHARE)).sum()) for low in (-1e-6, _UNEXPLAINED_SHARE)
    )
    # Real copies that changed more than usual may lie there too, so some pairs count for nothing.
    # Few pairs are a poor estimate, so their number is taken one standard deviation higher.
    false = max(0.0, beyond + beyond**0.5 - 2 - 0.1 * below) / (1 - 0.5**_POWER)
    limit = 2 * _UNEXPLAINED_SHARE * (_EXPECTED_FALSE / max(false, _EXPECTED_FALSE)) ** (1 / _POWER)
    if beyond > below / 2:
        # Of few pictures the tail is too short to be counted: what is not a copy begins there, and a copy lies well apart from it.
        limit = min(limit, _NEAREST_SHARE * float(left[left > _UNEXPLAINED_SHARE].min()))
    return float(min(_UNEXPLAINED_SHARE, limit))
