"""The similarity of keypoints is that of pycocotools."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest

from audit.metrics.keypoints import COCO_SIGMAS, keypoint_similarity
from audit.metrics.target_boxes import read_target_boxes


@pytest.mark.parametrize("seed", range(30))
def test_similarity_is_that_of_pycocotools(seed: int) -> None:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    random = np.random.default_rng(seed)
    target = np.concatenate([random.uniform(0, 200, (17, 2)), random.integers(0, 3, (17, 1))], axis=1)
    if seed % 5 == 0:
        target[:, 2] = 0  # no point is visible
    predicted = target + np.array([1.0, 1.0, 0.0]) * random.normal(0, 12, (17, 3))
    left, top, width, height = random.uniform(10, 120, 4)
    area = float(width * height * random.uniform(0.2, 0.9))
    facts = {"image_id": 1, "category_id": 1, "bbox": [left, top, width, height], "area": area, "iscrowd": 0}
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": 1}],
            "categories": [{"id": 1}],
            "annotations": [{"id": 1, "num_keypoints": 17, "keypoints": target.reshape(-1).tolist(), **facts}],
        }
        coco.createIndex()
        points = {"keypoints": predicted.reshape(-1).tolist(), "score": 0.9, "image_id": 1, "category_id": 1}
        judge = COCOeval(coco, coco.loadRes([points]), "keypoints")
        judge._prepare()
        expected = float(judge.computeOks(1, 1)[0, 0])
    box = np.array([left, top, left + width, top + height])
    assert keypoint_similarity(predicted, target, box, area) == pytest.approx(expected, abs=1e-9)


def test_other_points_have_no_similarity() -> None:
    box = np.array([0.0, 0.0, 10.0, 10.0])
    assert keypoint_similarity(np.ones((5, 3)), np.ones((5, 3)), box, None) is None
    bad = np.full((17, 3), np.nan)
    assert keypoint_similarity(bad, np.ones((17, 3)), box, None) is None
    assert keypoint_similarity(np.ones((17, 3)), np.ones((17, 3)), box, None) == 1.0
    assert len(COCO_SIGMAS) == 17


def test_targets_of_the_forms_in_use() -> None:
    points = np.arange(12.0).reshape(2, 2, 3)
    base = {"boxes": np.array([[0, 0, 4, 4], [1, 1, 9, 5]]), "labels": np.array([1, 1])}
    found = read_target_boxes(base | {"keypoints": points, "area": [3.0, 20.0]})
    assert found is not None
    assert found.keypoints is not None
    assert found.areas is not None
    assert (found.keypoints == points).all()
    assert found.areas.tolist() == [3.0, 20.0]
    apart = read_target_boxes(
        base | {"keypoints": points[..., :2], "visibility": points[..., 2], "area_share": [0.5, 1]}
    )
    assert apart is not None
    assert apart.keypoints is not None
    assert apart.areas is not None
    assert (apart.keypoints == points).all()
    assert apart.areas.tolist() == [8.0, 32.0]
    listed = [{"bbox": [0, 0, 4, 4], "category_id": 1, "keypoints": [1, 2, 2], "area": 3}]
    coco = read_target_boxes(listed)
    assert coco is not None
    assert coco.keypoints is not None
    assert coco.keypoints.tolist() == [[[1, 2, 2]]]
    with pytest.raises(ValueError, match="keypoints of shape"):
        read_target_boxes(base | {"keypoints": points[:1]})
