"""The mean average precision of a detector's recorded boxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from audit.metrics.average_precision import AveragePrecision, PictureBoxes, mean_average_precision
from audit.store.read.reader import Reader

#: Boxes that can be compared, of pictures whose targets are known, in the last complete epoch.
_BOXES = """
    SELECT class, index, visit, kind, score, x1, y1, x2, y2, coalesce(crowd, false) AS crowd
    FROM boxes WHERE run_id = ? AND call = 0
      AND epoch = coalesce(?, (SELECT max(epoch) FROM boxes WHERE run_id = ? AND call = 0))
      AND isfinite(x1 + y1 + x2 + y2) AND x2 >= x1 AND y2 >= y1 AND isfinite(coalesce(score, 0))
      AND NOT (kind = 'predicted' AND outcome IS NULL AND matched IS NULL)
    ORDER BY index, visit, kind, box
"""


def measure_detection(reader: Reader, run: str | None = None) -> AveragePrecision:
    """Return COCO's mean average precision of a run's boxes; its values are None where there are no target boxes."""
    recorded = reader.run(run)
    parameters = [recorded.run_id, recorded.last_epoch, recorded.run_id]
    found = reader.sql(_BOXES, run=[recorded.run_id], parameters=parameters).arrow()
    columns = {name: found[name].to_numpy(zero_copy_only=False) for name in found.column_names}
    classes: dict[int, list[PictureBoxes]] = {}
    for number in np.unique(columns["class"]) if found.num_rows else ():
        of_class = columns["class"] == number
        pairs = np.stack([columns["index"][of_class], columns["visit"][of_class]], axis=1)
        _, first, which = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        rows = np.flatnonzero(of_class)
        classes[int(number)] = [_picture(columns, rows[which.reshape(-1) == place]) for place in range(len(first))]
    return mean_average_precision(classes)


def _picture(columns: Mapping[str, np.ndarray[Any, Any]], rows: np.ndarray[Any, Any]) -> PictureBoxes:
    corners = np.stack([columns[name][rows] for name in ("x1", "y1", "x2", "y2")], axis=1).astype(np.float64)
    predicted = columns["kind"][rows] == "predicted"
    return PictureBoxes(
        corners[predicted],
        columns["score"][rows][predicted].astype(np.float64),
        corners[~predicted],
        columns["crowd"][rows][~predicted].astype(bool),
    )
