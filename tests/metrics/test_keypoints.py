"""The similarity of keypoints and their average precision are those of pycocotools."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import audit
from audit.metrics.average_precision import mean_average_precision
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


def _people(random: np.random.Generator, count: int) -> list[dict[str, Any]]:
    people = []
    for _ in range(count):
        left, top = random.uniform(0, 200, 2)
        width, height = random.uniform(20, 200, 2)
        points = np.concatenate(
            [random.uniform((left, top), (left + width, top + height), (17, 2)), random.integers(0, 3, (17, 1))], axis=1
        )
        if random.random() < 0.15:
            points[:, 2] = 0
        people.append(
            {
                "box": [float(x) for x in (left, top, left + width, top + height)],
                "points": points.astype(np.float32).astype(np.float64),
                "area": float(width * height * random.uniform(0.3, 0.9)),
                "crowd": bool(random.random() < 0.1),
            }
        )
    return people


def _found(random: np.random.Generator, people: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for person in [*people, *people[:1], *_people(random, int(random.integers(0, 3)))]:
        spread = random.choice([1.0, 6.0, 20.0])
        points = person["points"] + np.array([1.0, 1.0, 0.0]) * random.normal(0, spread, (17, 3))
        found.append(
            {
                "points": points.astype(np.float32).astype(np.float64),
                "score": float(random.random()),
                "box": person["box"],
            }
        )
    return found


def _coco_precision(pictures: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]) -> Any:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for number, (people, found) in enumerate(pictures, 1):
        for person in people:
            x1, y1, x2, y2 = person["box"]
            seen = int((person["points"][:, 2] > 0).sum())
            facts = {"image_id": number, "category_id": 1, "bbox": [x1, y1, x2 - x1, y2 - y1], "num_keypoints": seen}
            points = {"keypoints": person["points"].reshape(-1).tolist(), "area": person["area"]}
            annotations.append({"id": len(annotations) + 1, "iscrowd": int(person["crowd"]), **facts, **points})
        for one in found:
            listed = one["points"].reshape(-1).tolist()
            results.append({"image_id": number, "category_id": 1, "keypoints": listed, "score": one["score"]})
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "images": [{"id": number} for number in range(1, len(pictures) + 1)],
            "categories": [{"id": 1}],
            "annotations": annotations,
        }
        truth.createIndex()
        judge = COCOeval(truth, truth.loadRes(results), "keypoints")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return judge.stats


class _Pictures(Dataset[Any]):
    def __init__(self, pictures: list[Any]) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Any:
        people = self.pictures[index][0]
        return torch.full((3, 8, 8), float(index)), {
            "boxes": torch.tensor([one["box"] for one in people], dtype=torch.float64).reshape(-1, 4),
            "labels": torch.ones(len(people), dtype=torch.long),
            "keypoints": torch.from_numpy(np.stack([one["points"] for one in people])),
            "area": torch.tensor([one["area"] for one in people]),
            "iscrowd": torch.tensor([int(one["crowd"]) for one in people]),
        }


class _Answers(nn.Module):
    def __init__(self, pictures: list[Any]) -> None:
        super().__init__()
        self.pictures = pictures

    def forward(self, batch: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        answers = []
        for picture in batch:
            found = self.pictures[int(picture[0, 0, 0])][1]
            answers.append(
                {
                    "boxes": torch.tensor([one["box"] for one in found], dtype=torch.float64),
                    "labels": torch.ones(len(found), dtype=torch.long),
                    "scores": torch.tensor([one["score"] for one in found], dtype=torch.float64),
                    "keypoints": torch.from_numpy(np.stack([one["points"] for one in found])),
                    "keypoints_scores": torch.ones(len(found), 17),
                }
            )
        return answers


@pytest.mark.parametrize("seed", range(4))
def test_the_average_precision_of_recorded_keypoints_is_that_of_pycocotools(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    pictures = []
    for _ in range(5):
        people = _people(random, int(random.integers(1, 5)))
        pictures.append((people, _found(random, people)))
    expected = _coco_precision(pictures)
    model = _Answers(pictures)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(tmp_path, capture="digest") as run:
            run.model(model, output="boxes")
            for batch, _ in run.loader(DataLoader(_Pictures(pictures), 2, collate_fn=_lists)):
                model(batch)
    with audit.open(tmp_path) as store:
        found = store.keypoint_average_precision()
    for name, place in {"all": 0, "at_50": 1, "at_75": 2, "medium": 3, "large": 4, "recall": 5}.items():
        value = getattr(found, name)
        assert (-1.0 if value is None else value) == pytest.approx(expected[place], abs=1e-6), name
    assert found.small is None


def _lists(items: list[Any]) -> Any:
    return [x for x, _ in items], [y for _, y in items]


def test_boxes_without_keypoints_have_no_precision_of_them() -> None:
    assert mean_average_precision({}, most=20, sizes=("all", "medium", "large")).all is None


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
