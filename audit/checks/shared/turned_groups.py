"""Whether a group of pictures is turned or mirrored, as a whole, against another group of the same kind.

What pictures show has a top and a bottom: the mean of many photographs is brighter above, and the mean of many digits has
strokes at some places. Each picture of a group is compared with the mean of the other group, and with that mean turned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from audit.checks.shared.hashes import Array
from audit.checks.shared.picture_grids import pool

#: A group has at least so many pictures.
FEWEST = 40
#: Turned pictures lie at -1, upright ones at 1; the mean is below and above 0 by so many standard errors.
_ERRORS = 4.0
#: Pictures are compared at this size.
_SIDE = 8
#: Added to the variance of each point: of few pictures the covariance is uncertain.
_RIDGE = 0.3

#: Photographs are much the same from left to right, so that two of the turns have the same name.
_TURNS: tuple[tuple[str, Callable[[Array], Array]], ...] = (
    ("upside down", lambda grid: grid[..., ::-1, :]),
    ("upside down", lambda grid: grid[..., ::-1, ::-1]),
    ("mirrored from left to right", lambda grid: grid[..., ::-1]),
    ("turned by 90 degrees to the left", lambda grid: np.rot90(grid, 1, (-2, -1))),
    ("turned by 90 degrees to the right", lambda grid: np.rot90(grid, -1, (-2, -1))),
    ("transposed (rows and columns exchanged)", lambda grid: grid.swapaxes(-2, -1)),
    ("transposed (rows and columns exchanged) and upside down", lambda grid: grid.swapaxes(-2, -1)[..., ::-1, ::-1]),
)


@dataclass(frozen=True, slots=True)
class TurnedGroup:
    """How the pictures of a group are turned, and where they lie on average: -1 is fully turned, 1 is not at all."""

    description: str
    place: float
    error: float


def find_turn(reference: Array, group: Array) -> TurnedGroup | None:
    """Return how one group of thumbnails (n×side×side) is turned against another; None if it is not, or if that cannot be decided."""
    if min(len(reference), len(group)) < FEWEST:
        return None
    known, tried = _standard(reference), _standard(group)
    # Learned on one half of the reference; the other half shows how upright pictures lie.
    learned, upright = known[::2], known[1::2]
    mean = learned.mean(axis=0)
    weigh = np.linalg.inv(np.cov(learned.reshape(len(learned), -1), rowvar=False) + _RIDGE * np.eye(mean.size))
    found: list[tuple[float, TurnedGroup]] = []
    for description, turn in _TURNS:
        turned = turn(mean)
        # Fisher's discriminant between the mean and the turned mean.
        towards = (mean - turned).ravel()
        direction = weigh @ towards
        length = float(direction @ towards)
        if length < 1e-9:
            continue
        middle = (mean + turned).ravel() / 2
        places = [2 * (grids.reshape(len(grids), -1) - middle) @ direction / length for grids in (upright, tried)]
        (high, its_error), (low, error) = ((p.mean(), p.std() / math.sqrt(len(p))) for p in places)
        if low + _ERRORS * error < 0 < high - _ERRORS * its_error:
            apart = float(((tried.mean(axis=0) - turned) ** 2).sum())
            found.append((apart, TurnedGroup(description, float(low), float(error))))
    # A picture that is much the same from left to right fits several turns: the nearest is meant.
    return min(found, key=lambda one: one[0])[1] if found else None


def _standard(thumbnails: Array) -> Array:
    """Return small grids with mean 0 and spread 1 each."""
    grids = pool(thumbnails.astype(np.float32), _SIDE)
    grids = grids - grids.mean(axis=(1, 2), keepdims=True)
    spread: Array = np.maximum(grids.std(axis=(1, 2), keepdims=True), 1.0)
    return np.asarray(grids / spread)
