"""Boxes are matched by COCO's rule, and the mean average precision is that of pycocotools."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.metrics.average_precision import PictureBoxes, mean_average_precision
from audit.metrics.box_matching import match_picture, overlaps

_CLASSES = 3

#: Coordinates that both implementations hold exactly, so that no overlap lies at a threshold by rounding alone.
_BOXES = st.tuples(
    st.integers(0, 400), st.integers(0, 400), st.integers(1, 400), st.integers(1, 400), st.integers(0, _CLASSES - 1)
).map(lambda b: (b[0] / 4, b[1] / 4, (b[0] + b[2]) / 4, (b[1] + b[3]) / 4, b[4]))
_NUDGES = st.tuples(*[st.integers(-8, 8)] * 4)


@st.composite
def _pictures(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Pictures with targets, and predictions that are targets moved a little, or other boxes."""
    pictures = []
    for _ in range(draw(st.integers(1, 4))):
        targets = draw(st.lists(_BOXES, max_size=6))
        crowd = [draw(st.integers(0, 5)) == 0 for _ in targets]
        moved = []
        for target in targets:
            for _ in range(draw(st.integers(0, 2))):
                nudge = draw(_NUDGES)
                x1, y1, x2, y2 = (value + step / 4 for value, step in zip(target[:4], nudge, strict=True))
                if x2 > x1 and y2 > y1:
                    moved.append((x1, y1, x2, y2, draw(st.sampled_from([target[4], 0]))))
        predicted = draw(st.permutations([*moved, *draw(st.lists(_BOXES, max_size=4))]))
        scores = [draw(st.integers(1, 20)) / 20 for _ in predicted]
        pictures.append({"targets": targets, "crowd": crowd, "predicted": predicted, "scores": scores})
    return pictures


def _reference(pictures: list[dict[str, Any]]) -> Any:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for number, picture in enumerate(pictures, 1):
        for (x1, y1, x2, y2, kind), crowd in zip(picture["targets"], picture["crowd"], strict=True):
            box = [x1, y1, x2 - x1, y2 - y1]
            facts = {"id": len(annotations) + 1, "image_id": number, "category_id": kind + 1, "bbox": box}
            annotations.append(facts | {"area": box[2] * box[3], "iscrowd": int(crowd)})
        for (x1, y1, x2, y2, kind), score in zip(picture["predicted"], picture["scores"], strict=True):
            box = [x1, y1, x2 - x1, y2 - y1]
            results.append({"image_id": number, "category_id": kind + 1, "bbox": box, "score": score})
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "images": [{"id": number} for number in range(1, len(pictures) + 1)],
            "categories": [{"id": number + 1, "name": str(number)} for number in range(_CLASSES)],
            "annotations": annotations,
        }
        truth.createIndex()
        evaluated = COCOeval(truth, truth.loadRes(results) if results else COCO(), "bbox")
        evaluated.evaluate()
        evaluated.accumulate()
        evaluated.summarize()
    return evaluated.stats


def _ours(pictures: list[dict[str, Any]]) -> Any:
    classes: dict[int, list[PictureBoxes]] = {number: [] for number in range(_CLASSES)}
    for picture in pictures:
        predicted = np.array(picture["predicted"], dtype=float).reshape(-1, 5)
        targets = np.array(picture["targets"], dtype=float).reshape(-1, 5)
        scores, crowd = np.array(picture["scores"], dtype=float), np.array(picture["crowd"], dtype=bool)
        for number in classes:
            mine, theirs = predicted[:, 4] == number, targets[:, 4] == number
            classes[number].append(PictureBoxes(predicted[mine, :4], scores[mine], targets[theirs, :4], crowd[theirs]))
    return mean_average_precision(classes)


@settings(max_examples=examples(60))
@given(_pictures())
def test_the_mean_average_precision_is_that_of_pycocotools(pictures: list[dict[str, Any]]) -> None:
    if not any(picture["predicted"] for picture in pictures):
        return  # pycocotools takes no empty results
    expected, found = _reference(pictures), _ours(pictures)
    pairs = {"all": 0, "at_50": 1, "at_75": 2, "small": 3, "medium": 4, "large": 5, "recall": 8}
    for name, place in pairs.items():
        ours = getattr(found, name)
        assert (-1.0 if ours is None else ours) == pytest.approx(float(expected[place]), abs=1e-6), name


def test_no_target_has_no_precision_and_no_prediction_has_none_right() -> None:
    nothing = np.zeros((0, 4))
    box = np.array([[0.0, 0.0, 10.0, 10.0]])
    without_targets = PictureBoxes(box, np.ones(1), nothing, np.zeros(0, bool))
    assert mean_average_precision({0: [without_targets]}).all is None
    without_predictions = PictureBoxes(nothing, np.zeros(0), box, np.zeros(1, bool))
    assert mean_average_precision({0: [without_predictions]}).all == 0.0


def test_the_best_score_takes_the_target_and_the_other_is_left_alone() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 9], [50, 50, 60, 60]], dtype=float)
    found, shared = match_picture(
        boxes,
        np.array([1, 1, 1]),
        np.array([0.4, 0.9, 0.8]),
        np.array([[0, 0, 10, 10], [50, 50, 60, 60]], dtype=float),
        np.array([1, 2]),
        np.zeros(2, bool),
        0.5,
    )
    assert found.predicted.tolist() == [-1, 0, -1], "the better score wins, and another class does not match"
    assert found.targets.tolist() == [1, -1]
    assert shared[1, 0] == pytest.approx(0.9)


def test_a_box_without_area_overlaps_nothing() -> None:
    assert overlaps(np.array([[5, 5, 5, 9]]), np.array([[0, 0, 10, 10]])).tolist() == [[0.0]]
