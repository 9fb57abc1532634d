"""Where in its picture a drawing lies: if one class was moved by a few pixels, its position alone predicts the label.

The centre of what is drawn, and the middle of the box around it. What a class looks like moves one of them: datasets centre
their drawings by either. Only a drawing that was moved as a whole has both on one side.
"""

from __future__ import annotations

import numpy as np

from audit.checks.shared.hashes import Array
from audit.checks.shared.picture_grids import blocks

#: A pixel belongs to the drawing if it differs from the background by at least so many levels.
_DRAWN_LEVELS = 32
#: A row or column belongs to the box if it has at least this share of what the fullest one has.
_FILLED_SHARE = 0.02
#: The direction of each axis: words for a positive, and for a negative move.
_DIRECTIONS = (("farther down", "farther up"), ("farther to the right", "farther to the left"))


def measure_moves(thumbnails: Array) -> dict[str, Array]:
    """Return for each direction how far each drawing lies there, in pixels of a thumbnail, by the nearer of both measures."""
    places = np.concatenate([_places(block) for block in blocks(thumbnails)])
    places = places - np.median(places, axis=0)
    return {
        words: (sign * places[:, axis]).min(axis=1)
        for axis, both in enumerate(_DIRECTIONS)
        for sign, words in zip((1, -1), both, strict=True)
    }


def _places(thumbnails: Array) -> Array:
    """Return the centre and the middle of the box, down and across, of each drawing: n×2×2."""
    grey = thumbnails.astype(np.float32)
    edges = np.concatenate([grey[:, 0], grey[:, -1], grey[:, :, 0], grey[:, :, -1]], axis=1)
    drawn = np.abs(grey - np.median(edges, axis=1)[:, None, None])
    drawn[drawn < _DRAWN_LEVELS] = 0
    side = grey.shape[1]
    axis = np.arange(side, dtype=np.float32) - (side - 1) / 2
    found = np.empty((len(grey), 2, 2), np.float32)
    for number, across in enumerate((2, 1)):
        amounts = drawn.sum(axis=across)
        found[:, number, 0] = amounts @ axis / np.maximum(amounts.sum(axis=1), 1)
        filled = amounts > _FILLED_SHARE * amounts.max(axis=1, keepdims=True)
        first, last = filled.argmax(axis=1), side - 1 - filled[:, ::-1].argmax(axis=1)
        found[:, number, 1] = np.where(filled.any(axis=1), (first + last) / 2 - (side - 1) / 2, 0)
    return found
