"""The boxes of one picture, as numbers: what a detector predicted, or what it should have found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes (n, 4) as x1, y1, x2, y2, their class numbers, and what else is known of each."""

    boxes: Array
    classes: Array
    #: The model's confidence, of predicted boxes.
    scores: Array | None = None
    #: Which targets stand for many objects.
    crowd: Array | None = None
    #: The keypoints of each object, (n, K, 3): x, y and visibility; and the model's score of each.
    keypoints: Array | None = None
    keypoint_scores: Array | None = None
    #: The area of each target, where it is not that of its box.
    areas: Array | None = None

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def is_valid(self) -> Array:
        """Which boxes can be compared: all numbers are finite and no side is negative."""
        finite = np.isfinite(self.boxes).all(axis=1)
        if self.scores is not None:
            finite &= np.isfinite(self.scores)
        with np.errstate(invalid="ignore"):
            upright = (self.boxes[:, 2] >= self.boxes[:, 0]) & (self.boxes[:, 3] >= self.boxes[:, 1])
        return np.asarray(finite & upright)
