"""The mean average precision of a detector's recorded boxes, and of their keypoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from audit.metrics.average_precision import AveragePrecision, PictureBoxes, mean_average_precision
from audit.metrics.box_matching import areas
from audit.metrics.keypoints import COCO_SIGMAS, keypoint_similarity
from audit.store.read.reader import Reader

#: Boxes that can be compared, of pictures whose targets are known, in the last complete epoch.
_BOXES = """
    SELECT class, index, visit, kind, score, x1, y1, x2, y2, coalesce(crowd, false) AS crowd, area, keypoints
    FROM boxes WHERE run_id = ? AND call = 0
      AND epoch = coalesce(?, (SELECT max(epoch) FROM boxes WHERE run_id = ? AND call = 0))
      AND isfinite(x1 + y1 + x2 + y2) AND x2 >= x1 AND y2 >= y1 AND isfinite(coalesce(score, 0))
      AND NOT (kind = 'predicted' AND outcome IS NULL AND matched IS NULL)
    ORDER BY index, visit, kind, box
"""


#: For each picture and class, as many predicted objects count as in COCO's own measure of keypoints.
_MOST_OBJECTS = 20
_POINTS = len(COCO_SIGMAS)
Columns = Mapping[str, np.ndarray[Any, Any]]
Rows = np.ndarray[Any, Any]


def measure_detection(reader: Reader, run: str | None = None) -> AveragePrecision:
    """Return COCO's mean average precision of a run's boxes; its values are None where there are no target boxes."""
    columns = _boxes_of(reader, run)
    return mean_average_precision(
        {number: [_picture(columns, rows) for rows in pictures] for number, pictures in _by_class(columns).items()}
    )


def measure_keypoints(reader: Reader, run: str | None = None) -> AveragePrecision:
    """Return COCO's mean average precision of a run's keypoints; its values are None unless they are its 17 of a person."""
    columns = _boxes_of(reader, run)
    classes: dict[int, list[PictureBoxes]] = {}
    for number, pictures in _by_class(columns).items():
        made = [_picture_of_points(columns, rows) for rows in pictures]
        if all(picture is not None for picture in made):
            classes[number] = [picture for picture in made if picture is not None]
    return mean_average_precision(classes, most=_MOST_OBJECTS, sizes=("all", "medium", "large"))


def _boxes_of(reader: Reader, run: str | None) -> Columns:
    recorded = reader.run(run)
    parameters = [recorded.run_id, recorded.last_epoch, recorded.run_id]
    found = reader.sql(_BOXES, run=[recorded.run_id], parameters=parameters).arrow()
    return {name: found[name].to_numpy(zero_copy_only=False) for name in found.column_names}


def _by_class(columns: Columns) -> dict[int, list[Rows]]:
    """Return the rows of each picture, by class."""
    classes: dict[int, list[Rows]] = {}
    for number in np.unique(columns["class"]) if len(columns["class"]) else ():
        of_class = columns["class"] == number
        pairs = np.stack([columns["index"][of_class], columns["visit"][of_class]], axis=1)
        _, first, which = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        rows = np.flatnonzero(of_class)
        classes[int(number)] = [rows[which.reshape(-1) == place] for place in range(len(first))]
    return classes


def _picture(columns: Columns, rows: Rows) -> PictureBoxes:
    corners = np.stack([columns[name][rows] for name in ("x1", "y1", "x2", "y2")], axis=1).astype(np.float64)
    predicted = columns["kind"][rows] == "predicted"
    targets = corners[~predicted]
    # An annotation may say the area of its object, which is not that of the box.
    said = columns["area"][rows][~predicted].astype(np.float64)
    return PictureBoxes(
        corners[predicted],
        columns["score"][rows][predicted].astype(np.float64),
        targets,
        columns["crowd"][rows][~predicted].astype(bool),
        areas=np.where(np.isnan(said), areas(targets), said),
    )


def _picture_of_points(columns: Columns, rows: Rows) -> PictureBoxes | None:
    """Return a picture whose objects are compared by their keypoints; None where an object has none of COCO's."""
    boxes = _picture(columns, rows)
    listed = [columns["keypoints"][row] for row in rows]
    if any(points is None or len(points) != 3 * _POINTS for points in listed):
        return None
    points = np.array([np.asarray(one, dtype=np.float64) for one in listed]).reshape(-1, _POINTS, 3)
    if not np.isfinite(points).all():
        return None
    is_predicted = columns["kind"][rows] == "predicted"
    predicted, targets = points[is_predicted], points[~is_predicted]
    sizes = np.zeros(0) if boxes.areas is None else boxes.areas
    similarity = np.zeros((len(predicted), len(targets)))
    for place, target in enumerate(targets):
        for number, one in enumerate(predicted):
            found = keypoint_similarity(one, target, boxes.targets[place], float(sizes[place]))
            similarity[number, place] = found or 0.0
    extent = predicted[..., :2].max(axis=1) - predicted[..., :2].min(axis=1) if len(predicted) else np.zeros((0, 2))
    return replace(
        boxes,
        similarity=similarity,
        predicted_areas=extent.prod(axis=1),
        ignored=~(targets[..., 2] > 0).any(axis=1),
    )
