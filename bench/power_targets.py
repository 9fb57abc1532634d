"""The simulations of bench.power for the targets of detectors and segmentations, and for the scale of samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from audit.checks.context import Context
from audit.checks.model.box_fit import BoxFit
from audit.checks.model.mask_fit import MaskFit, MaskPair
from audit.checks.shared.significance import holm, two_rates
from audit.checks.shared.target_pairs import BoxPair, fits
from audit.checks.values.odd_scale import find_limit

Array = np.ndarray[Any, Any]
SIDE = 48


def _context(check: type[BoxFit] | type[MaskFit]) -> Context:
    """Return what the checks read of a context: their default options, and the run for evidence."""
    options = {name: option.default for name, option in check.options.items()}
    return cast("Context", SimpleNamespace(options=options, run_literal="'run'"))


def _boxes(rng: np.random.Generator) -> Array:
    """Return one to three boxes that do not cover each other."""
    count = int(rng.integers(1, 4))
    low = np.stack([rng.integers(0, SIDE - 16, count), 16 * np.arange(count)], axis=1)
    return np.concatenate([low, low + rng.integers(6, 16, (count, 2))], axis=1).astype(float)


def box_fit(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """The targets of a third of the pictures are mirrored, and the model finds 70 % of the objects; at most 1,000 pictures are used."""
    pairs = []
    for index in range(min(n, 1_000)):
        boxes = _boxes(rng)
        predicted = np.where(
            rng.random((len(boxes), 1)) < 0.7, boxes + rng.normal(0, 0.5, boxes.shape), _boxes(rng)[:1]
        )
        if fault and index % 3 == 0:
            boxes = np.stack([SIDE - boxes[:, 2], boxes[:, 1], SIDE - boxes[:, 0], boxes[:, 3]], axis=1)
        classes = np.ones(len(boxes), int)
        pairs.append(BoxPair(index, boxes, classes, predicted, classes, (SIDE, SIDE)))
    now = [fits(pair.targets, pair.predicted) for pair in pairs]
    count = sum(len(pair.targets) for pair in pairs)
    return any(True for _ in BoxFit()._find_better_boxes(_context(BoxFit), pairs, now, count))


def mask_fit(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """A third of the masks is mirrored, and the model finds 70 % of the objects; at most 300 pictures are used."""
    pairs = []
    for index in range(min(n, 300)):
        target, predicted = (np.zeros((SIDE, SIDE), np.uint8) for _ in range(2))
        for left, top, right, bottom in _boxes(rng).astype(int).tolist():
            target[top:bottom, left:right] = 1
            if rng.random() < 0.7:
                predicted[top:bottom, left + 1 : right + 1] = 1
        pairs.append(MaskPair(index, target[:, ::-1] if fault and index % 3 == 0 else target, predicted, True))
    return any(True for _ in MaskFit()._find_better_masks(_context(MaskFit), pairs, 0))


def missed_by_size(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """A detector misses half of the small objects, a third of all, and 10 % of the others; one object in each picture."""
    small, others = n // 3, n - n // 3
    missed, usual = int(rng.binomial(small, 0.5 if fault else 0.1)), int(rng.binomial(others, 0.1))
    sure = holm([two_rates(missed, small, usual, others)] * 2, 0.001)[0]
    return min(small, others) >= 30 and sure and missed / small - usual / others >= 0.3


def odd_scale(rng: np.random.Generator, n: int, fault: bool) -> bool:
    """One sample was not divided by 255, where the largest values of the others spread by a fifth (lognormal)."""
    largest = np.exp(rng.normal(0, 0.2, n))
    if fault:
        largest[0] *= 255
    middle, high = np.quantile(largest, [0.5, 0.95])
    return n >= 50 and bool((largest > find_limit(float(middle), float(high), 20.0)).any())
