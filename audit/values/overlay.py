"""Boxes and masks drawn over their picture: targets in green, what a model found in blue, what it got wrong in red."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np
from PIL import Image, ImageDraw

Array = np.ndarray[Any, Any]


class DrawnBox(TypedDict):
    """A box as `draw_overlay` draws it: columns of the table `boxes`, with the corners in pixels of the picture."""

    x1: float
    y1: float
    x2: float
    y2: float
    class_: NotRequired[int | None]
    class_name: NotRequired[str | None]
    score: NotRequired[float | None]
    outcome: NotRequired[str | None]
    keypoints: NotRequired[Sequence[float] | None]


#: Boxes, or a mask (H, W) of class numbers.
Overlay = Sequence[DrawnBox] | Array | None

Colour = tuple[int, int, int]
TARGET, FOUND, WRONG = (52, 199, 89), (10, 132, 255), (255, 69, 58)
#: The least side of the drawn picture: boxes over a picture of 32 pixels cannot be read.
_LEAST = 240


def draw_overlay(
    picture: Image.Image, target: Overlay = None, predicted: Overlay = None, *, enlarge: bool = True
) -> Image.Image:
    """Return the picture with what was wanted and what a model predicted; the picture itself stays as it is.

    Boxes are drawn with class and score: a target that was missed and a predicted box
    that is wrong are red. A predicted mask is tinted blue where it is right, and red where it is not. `enlarge` makes a
    small picture large enough to read the names of classes; without it, boxes have no names.
    """
    factor = max(1, -(-_LEAST // max(1, min(picture.size)))) if enlarge else 1
    drawn = picture.convert("RGB").resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    if isinstance(target, np.ndarray) or isinstance(predicted, np.ndarray):
        return _tint(drawn, _array(target), _array(predicted))
    pen = ImageDraw.Draw(drawn)
    for boxes, colour, wrong in ((target, TARGET, "fn"), (predicted, FOUND, "fp")):
        for box in _boxes(boxes):
            _draw_box(pen, box, WRONG if box.get("outcome") == wrong else colour, factor, named=enlarge)
    return drawn


def _boxes(overlay: Overlay) -> list[DrawnBox]:
    return [] if overlay is None or isinstance(overlay, np.ndarray) else list(overlay)


def _array(overlay: Overlay) -> Array | None:
    return overlay if isinstance(overlay, np.ndarray) else None


def _draw_box(
    pen: ImageDraw.ImageDraw, box: DrawnBox, colour: tuple[int, int, int], factor: int, *, named: bool
) -> None:
    corners = [float(number) * factor for number in (box["x1"], box["y1"], box["x2"], box["y2"])]
    if not np.isfinite(corners).all() or corners[2] < corners[0] or corners[3] < corners[1]:
        return  # such a box is in the table, and cannot be drawn
    pen.rectangle(corners, outline=colour, width=2 if named else 1)
    points = np.asarray(box.get("keypoints") or (), dtype=np.float64).reshape(-1, 3)
    for x, y, seen in points[np.isfinite(points).all(axis=1)]:
        if seen > 0:
            radius = 3 if named else 1
            place = (x * factor - radius, y * factor - radius, x * factor + radius, y * factor + radius)
            pen.ellipse(place, fill=colour)
    if not named:
        return
    name = box.get("class_name") or box.get("class_")
    score = box.get("score")
    text = str(name) if score is None else f"{name} {score:.2f}"
    left, top = max(corners[0], 0), max(corners[1], 0)
    pen.rectangle(pen.textbbox((left + 2, top + 1), text), fill=colour)
    pen.text((left + 2, top + 1), text, fill=(255, 255, 255))


def _tint(drawn: Image.Image, target: Array | None, predicted: Array | None) -> Image.Image:
    pixels = np.asarray(drawn, dtype=np.float32)
    for chosen, colour in _layers(target, predicted, drawn.size):
        tinted = 0.5 * pixels + 0.5 * np.array(colour, dtype=np.float32)
        pixels = np.where(chosen[..., None], tinted, pixels)
    return Image.fromarray(pixels.astype(np.uint8))


def mask_layer(target: Array | None, predicted: Array | None, most: int = 512) -> Image.Image:
    """Return masks as a picture to lay over another: tinted as `draw_overlay` does, transparent elsewhere."""
    given = target if target is not None else predicted
    if given is None:
        raise ValueError("a layer needs a mask")
    shrink = max(1.0, max(given.shape) / most)
    size = max(1, round(given.shape[1] / shrink)), max(1, round(given.shape[0] / shrink))
    pixels = np.zeros((size[1], size[0], 4), np.uint8)
    for chosen, colour in _layers(target, predicted, size):
        pixels[chosen] = (*colour, 128)
    return Image.fromarray(pixels)


def _layers(target: Array | None, predicted: Array | None, size: tuple[int, int]) -> list[tuple[Array, Colour]]:
    """Return the pixels of each colour: right ones and wrong ones, or those of the only mask there is."""
    wanted = None if target is None else _resize(target, size)
    guessed = None if predicted is None else _resize(predicted, size)
    if wanted is not None and guessed is not None:
        judged = wanted != 255
        return [(judged & (guessed == wanted) & (wanted > 0), FOUND), (judged & (guessed != wanted), WRONG)]
    if guessed is not None:
        return [(guessed > 0, FOUND)]
    return [] if wanted is None else [(wanted > 0, TARGET)]


def _resize(mask: Array, size: tuple[int, int]) -> Array:
    """Return class numbers at the size of the drawn picture; each pixel keeps one of them."""
    rows = np.arange(size[1]) * mask.shape[0] // size[1]
    columns = np.arange(size[0]) * mask.shape[1] // size[0]
    return np.asarray(mask[rows[:, None], columns[None, :]])
