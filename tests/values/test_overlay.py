"""Boxes and masks over a picture: what is drawn, where, and in which colour."""

from __future__ import annotations

import numpy as np
from PIL import Image

from audit.values.overlay import FOUND, TARGET, WRONG, DrawnBox, draw_overlay


def box(
    x1: float, y1: float, x2: float, y2: float, *, outcome: str | None = None, score: float | None = None
) -> DrawnBox:
    return {
        "x1": x1, "y1": y1, "x2": x2, "y2": y2, "class_": 1, "class_name": "cat", "outcome": outcome, "score": score,
    }  # fmt: skip


def test_boxes_are_drawn_in_the_colour_of_their_outcome() -> None:
    picture = Image.new("RGB", (300, 300))
    drawn = draw_overlay(
        picture,
        [box(10, 10, 60, 60, outcome="tp"), box(100, 100, 150, 150, outcome="fn")],
        [box(200, 200, 250, 250, outcome="fp", score=0.9), box(10, 200, 60, 250, outcome="tp", score=0.5)],
    )
    assert drawn.getpixel((60, 60)) == TARGET
    assert drawn.getpixel((150, 150)) == WRONG
    assert drawn.getpixel((250, 250)) == WRONG
    assert drawn.getpixel((60, 250)) == FOUND
    assert picture.getbbox() is None, "the picture itself stays as it is"


def test_a_small_picture_is_drawn_larger_and_a_broken_box_not_at_all() -> None:
    drawn = draw_overlay(Image.new("L", (32, 16)), [box(float("nan"), 0, 1, 1), box(9, 9, 3, 3)])
    assert drawn.size == (480, 240)
    assert drawn.getbbox() is None


def test_a_mask_is_tinted_where_it_is_right_and_where_it_is_not() -> None:
    target = np.array([[1, 1], [0, 255]])
    predicted = np.array([[1, 0], [0, 1]])
    drawn = np.asarray(draw_overlay(Image.new("RGB", (240, 240)), target, predicted))
    assert (drawn[60, 60] == np.array(FOUND) // 2).all()
    assert (drawn[60, 180] == np.array(WRONG) // 2).all()
    assert not drawn[180, 60].any()
    assert not drawn[180, 180].any(), "pixels of class 255 are not judged"
