"""Intersection over union and pixel accuracy of a predicted mask, class by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

#: Pixels of this class are not to be judged: the border between objects in the masks of Pascal VOC, and others since.
IGNORED_CLASS = 255


@dataclass(frozen=True, slots=True)
class ClassScore:
    """How many pixels of one class the target, the predicted mask and both have."""

    number: int
    target: int
    predicted: int
    shared: int

    @property
    def iou(self) -> float:
        """The pixels that are this class in both, divided by those that are in either."""
        return self.shared / (self.target + self.predicted - self.shared)

    @property
    def accuracy(self) -> float | None:
        """The share of the target's pixels that is found; None if the target has none."""
        return self.shared / self.target if self.target else None


def find_counted_pixels(target: Array, classes: int) -> Array:
    """Return which pixels of a target mask are judged: losses leave negative numbers out, and 255 unless it is a class."""
    return np.asarray((target >= 0) & ((target != IGNORED_CLASS) | (classes > IGNORED_CLASS)))


def score_mask(predicted: Array, target: Array, counted: Array) -> list[ClassScore]:
    """Return the score of each class that occurs in either mask (H, W) among the pixels that count."""
    guessed, wanted = predicted[counted], target[counted]
    found = []
    for number in np.union1d(guessed, wanted):
        mine, theirs = guessed == number, wanted == number
        found.append(ClassScore(int(number), int(theirs.sum()), int(mine.sum()), int((mine & theirs).sum())))
    return found
