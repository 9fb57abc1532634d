"""Target and predicted boxes of the same pictures, and how many targets a prediction fits, as they are or changed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audit.checks.context import Context
from audit.checks.shared.hashes import Array

#: For each visit the height and width of the last picture or tensor that its stages made.
PICTURE_SIZES = """
    SELECT epoch, index, visit, arg_max(CASE kind
               WHEN 'image' THEN struct_pack(high := shape[1], wide := shape[2])
               ELSE struct_pack(high := shape[2], wide := shape[3]) END, stage) AS size
    FROM stage_outputs
    WHERE (kind = 'image' AND len(shape) >= 2) OR (kind = 'tensor' AND len(shape) = 3 AND shape[1] IN (1, 3, 4))
    GROUP BY epoch, index, visit
"""
#: Predicted boxes that are less sure than this say little.
_SURE = 0.5
#: The overlap at which a prediction fits a target, as COCO has it.
OVERLAP = 0.5


@dataclass(frozen=True, slots=True)
class BoxPair:
    """The boxes of one picture: corners (n×4) and classes of its targets and of its sure predictions; its width and height."""

    index: int
    targets: Array
    target_classes: Array
    predicted: Array
    predicted_classes: Array
    size: tuple[float, float]


def box_pairs(context: Context, most: int) -> list[BoxPair]:
    """Return the boxes of at most `most` pictures of the last epoch that have any, in order of index."""
    run = f"run_id = {context.run_literal}"
    rows = context.rows(
        "SELECT b.index, b.kind, b.class AS class, b.x1, b.y1, b.x2, b.y2, z.size.wide AS wide, z.size.high AS high "
        f"FROM boxes b SEMI JOIN {context.predictions} p USING (epoch, index, visit) LEFT JOIN ({PICTURE_SIZES}) z USING (epoch, index, visit) "
        f"WHERE b.{run} AND b.call = 0 AND b.visit = 0 AND (b.kind = 'target' OR b.score >= {_SURE}) "
        f"AND b.model IS NOT DISTINCT FROM (SELECT min(model) FROM boxes WHERE {run}) "
        "AND isfinite(b.x1 + b.y1 + b.x2 + b.y2) AND NOT coalesce(b.crowd, false) "
        f"ORDER BY b.index, b.kind, b.box LIMIT {100 * most}"
    )
    grouped: dict[int, list[dict[str, object]]] = {}
    for row in rows:
        grouped.setdefault(row["index"], []).append(row)
    found = []
    for index, own in list(grouped.items())[:most]:
        boxes = {kind: [row for row in own if row["kind"] == kind] for kind in ("target", "predicted")}
        corners = {
            kind: np.array([[row[name] for name in ("x1", "y1", "x2", "y2")] for row in some], np.float64).reshape(
                -1, 4
            )
            for kind, some in boxes.items()
        }
        classes = {kind: np.array([row["class"] for row in some], np.int64) for kind, some in boxes.items()}
        size = (float(own[0]["wide"] or 0), float(own[0]["high"] or 0))  # type: ignore[arg-type]
        found.append(
            BoxPair(index, corners["target"], classes["target"], corners["predicted"], classes["predicted"], size)
        )
    return found


def overlaps(first: Array, second: Array) -> Array:
    """Return the intersection over union of each of n boxes with each of m: n×m."""
    if not len(first) or not len(second):
        return np.zeros((len(first), len(second)))
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=2)
    areas = [np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0), axis=1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1][None] - shared
    found: Array = shared / np.maximum(union, 1e-9)
    return found


def fits(targets: Array, predicted: Array) -> Array:
    """Return for each target whether some prediction fits it, whatever its class."""
    if not len(predicted):
        return np.zeros(len(targets), bool)
    found: Array = np.max(overlaps(targets, predicted), axis=1, initial=0) >= OVERLAP
    return found
