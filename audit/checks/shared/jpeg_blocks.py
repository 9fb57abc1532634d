"""How clearly the 8×8 blocks of a JPEG file show in pixels, whatever file they are in now."""

from __future__ import annotations

import math

import numpy as np

from audit.checks.shared.hashes import Array

#: The side of a block of JPEG, and the shortest side of a picture with enough borders between blocks.
_BLOCK, LEAST_SIDE = 8, 24
#: A group, and all others together, have at least this many pictures.
_FEWEST = 40


def block_contrast(grey: Array) -> Array:
    """Return for each picture (n×height×width) by how much steps are higher at the borders of blocks than elsewhere."""
    levels = grey.astype(np.float32)
    found = np.zeros(len(levels), np.float32)
    for axis in (1, 2):
        steps = np.moveaxis(np.abs(np.diff(levels, axis=axis)), axis, 1).mean(axis=2)
        # By how much a step exceeds those beside it: a soft edge at the border of a block is none of its making.
        excess = steps[:, 1:-1] - (steps[:, :-2] + steps[:, 2:]) / 2
        at_border = np.arange(1, steps.shape[1] - 1) % _BLOCK == _BLOCK - 1
        apart = excess[:, at_border].mean(axis=1) - excess[:, ~at_border].mean(axis=1)
        found += apart / (2 * (steps.mean(axis=1) + 1))
    return found


def find_blocky(contrasts: Array, labels: Array, least: float) -> tuple[int, float] | None:
    """Return the class with the clearest blocks, and by how many standard deviations they are clearer than in all others; None below `least`.

    What pictures show does not lie on a grid of 8 pixels, so that all classes have the same mean.
    """
    best: tuple[int, float] | None = None
    for label in np.unique(labels).tolist():
        own, others = contrasts[labels == label], contrasts[labels != label]
        if min(len(own), len(others)) < _FEWEST:
            continue
        error = math.sqrt(own.var() / len(own) + others.var() / len(others))
        # Four standard errors: there are many classes.
        effect = float((own.mean() - others.mean() - 4 * error) / max(others.std(), 1e-3))
        if effect >= least and (best is None or effect > best[1]):
            best = int(label), effect
    return best
