"""Target boxes and masks that fit the predictions only after a change, and those that fit as they are."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checks_contracts import outcome_of
from checks_world import World, world
from PIL import Image

Array = np.ndarray[Any, Any]
#: The pictures of the hand-made run are 48 pixels wide and high.
SIDE = 48
_BACKGROUND = 0


def _objects(seed: int) -> tuple[Array, Array]:
    """Return one to three boxes and their classes, of all sizes and at all places."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 4))
    size = rng.integers(6, 16, (count, 2))
    # Each object in a strip of its own, so that they do not cover each other.
    low = np.stack([rng.integers(0, SIDE - 16, count), 16 * np.arange(count)], axis=1)
    return np.concatenate([low, low + size], axis=1).astype(float), rng.permutation(3)[:count] + 1


BoxChange = Callable[[int, Array, Array], tuple[Array, Array]]
_BOXES: dict[str, tuple[str, BoxChange]] = {
    "mirrored": (
        "left and right",
        lambda n, b, c: (np.stack([SIDE - b[:, 2], b[:, 1], SIDE - b[:, 0], b[:, 3]], 1), c),
    ),
    "every second one mirrored": (
        "left and right",
        lambda n, b, c: (np.stack([SIDE - b[:, 2], b[:, 1], SIDE - b[:, 0], b[:, 3]], 1) if n % 2 else b, c),
    ),
    "swapped": ("axes are swapped", lambda n, b, c: (b[:, [1, 0, 3, 2]], c)),
    "sizes": ("width, height", lambda n, b, c: (np.concatenate([b[:, :2], b[:, 2:] - b[:, :2]], 1), c)),
    "centres": (
        "the centre",
        lambda n, b, c: (np.concatenate([(b[:, :2] + b[:, 2:]) / 2, b[:, 2:] - b[:, :2]], 1), c),
    ),
    "shifted": ("moved by -9, -7", lambda n, b, c: (b + np.array([9, 7, 9, 7]), c)),
    "smaller": ("multiplied by 2.00, 2.00", lambda n, b, c: (b / 2, c)),
    "next": ("of the previous sample", lambda n, b, c: _objects(n + 1)),
    "swapped classes": ("1 as 2; 2 as 1", lambda n, b, c: (b, np.array([0, 2, 1, 3])[c])),
    "classes from 2": ("2 as 1; 3 as 2; 4 as 3", lambda n, b, c: (b, c + 1)),
    "missing": ("have no target box", lambda n, b, c: (b[:0], c[:0]) if n % 3 == 0 else (b, c)),
}


def _with_boxes(change: BoxChange, found: Callable[[int], bool] = lambda number: True) -> World:
    made = world(90)
    made.run.classes = None
    made.tables["boxes"] = []
    for row in made.tables["stage_outputs"]:
        row["shape"] = [SIDE, SIDE, 3] if row["kind"] == "image" else [3, SIDE, SIDE]
    for number in range(90):
        boxes, classes = _objects(number)
        key = {"epoch": 0, "index": number, "visit": 0, "call": 0}
        for kind, (corners, names) in (
            ("target", change(number, boxes, classes)),
            ("predicted", (boxes + 0.4, classes)),
        ):
            for place, (corner, name) in enumerate(zip(corners.tolist(), names.tolist(), strict=True)):
                if kind == "predicted" and not found(number):
                    corner = (np.random.default_rng(number).uniform(0, 20, 4) + np.array([0, 0, 24, 24])).tolist()
                given = dict(zip(("x1", "y1", "x2", "y2"), corner, strict=True))
                score = 0.9 if kind == "predicted" else None
                made.tables["boxes"].append({**key, "box": place, "kind": kind, "class": name, "score": score, **given})
    return made


@pytest.mark.parametrize("fault", _BOXES)
def test_changed_target_boxes_are_found(tmp_path: Path, fault: str) -> None:
    says, change = _BOXES[fault]
    found = outcome_of(_with_boxes(change).write(tmp_path / "lineage"), "box_fit").findings
    assert len(found) == 1
    assert says in found[0].message


@pytest.mark.parametrize("good", [1.0, 0.5, 0.0])
def test_boxes_of_good_and_poor_models_are_silent(tmp_path: Path, good: float) -> None:
    """A model that is wrong about many boxes is not a sign of wrong targets."""
    made = _with_boxes(lambda n, b, c: (b, c), lambda number: number % 10 < 10 * good)
    outcome = outcome_of(made.write(tmp_path / "lineage"), "box_fit")
    assert outcome.status == "pass"


def _mask(seed: int) -> Array:
    mask = np.zeros((SIDE, SIDE), np.uint8)
    for (left, top, right, bottom), name in zip(*(part.astype(int) for part in _objects(seed)), strict=True):
        mask[top:bottom, left:right] = name
    return mask


def _interpolated(mask: Array) -> Array:
    small = Image.fromarray(mask).resize((SIDE // 2, SIDE // 2), Image.Resampling.NEAREST)
    return np.asarray(small.resize((SIDE, SIDE), Image.Resampling.BILINEAR))


_MASKS: dict[str, tuple[str, Callable[[int, Array], Array]]] = {
    "mirrored": ("left and right", lambda n, mask: mask[:, ::-1]),
    "upside down": ("top and bottom", lambda n, mask: mask[::-1]),
    "shifted": ("moved by -6, -9", lambda n, mask: np.roll(mask, (9, 6), (0, 1))),
    "next": ("of the previous sample", lambda n, mask: _mask(n + 1)),
    "swapped classes": ("1 as 2; 2 as 1", lambda n, mask: np.array([0, 2, 1, 3])[mask]),
    "classes from 2": ("2 as 1; 3 as 2; 4 as 3", lambda n, mask: np.where(mask, mask + 1, 0)),
    "inverted": ("1 as 0", lambda n, mask: mask == 0),
    "interpolated": ("interpolation", lambda n, mask: _interpolated(mask)),
    "missing": ("have no object", lambda n, mask: mask * (n % 3 > 0)),
}


def _with_masks(change: Callable[[int, Array], Array], predict: Callable[[int, Array], Array]) -> World:
    made = world(90)
    made.run.classes = None
    made.tables["masks"] = []
    for number in range(90):
        mask = _mask(number)
        for kind, pixels in (("target", change(number, mask)), ("predicted", predict(number, mask))):
            file = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(pixels).astype(np.uint8)).save(file, "PNG")
            key = {"epoch": 0, "index": number, "visit": 0, "call": 0, "kind": kind, "digest": "0", "form": "full"}
            made.tables["masks"].append({**key, "width": SIDE, "height": SIDE, "data": file.getvalue()})
    return made


@pytest.mark.parametrize("fault", _MASKS)
def test_changed_target_masks_are_found(tmp_path: Path, fault: str) -> None:
    says, change = _MASKS[fault]
    made = _with_masks(change, lambda n, mask: mask)
    found = outcome_of(made.write(tmp_path / "lineage"), "mask_fit").findings
    assert len(found) == 1
    assert says in found[0].message


_MODELS: dict[str, Callable[[int, Array], Array]] = {
    "good": lambda n, mask: mask,
    "inexact": lambda n, mask: np.roll(mask, (n % 3 - 1, n % 2), (0, 1)),
    "misses a class": lambda n, mask: np.where(mask == 2, _BACKGROUND, mask),
    "finds nothing": lambda n, mask: mask * 0,
    "guesses": lambda n, mask: _mask(n + 1000),
}


@pytest.mark.parametrize("model", _MODELS)
def test_masks_of_good_and_poor_models_are_silent(tmp_path: Path, model: str) -> None:
    made = _with_masks(lambda n, mask: mask, _MODELS[model])
    assert outcome_of(made.write(tmp_path / "lineage"), "mask_fit").status == "pass"
