"""The boxes or masks of one visit, drawn over its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from audit.sources.decode import open_picture
from audit.values.overlay import draw_overlay

if TYPE_CHECKING:
    from audit.lineage.trace import Trace

_PLACES = (("x1", "sx1"), ("y1", "sy1"), ("x2", "sx2"), ("y2", "sy2"))


def visit_overlay(trace: Trace) -> Image.Image | None:
    """Return the picture of a visit with its boxes or masks; None if it has neither, or no picture.

    Boxes whose place in the source is known are drawn over the decoded source, all others over the model's input.
    """
    if trace.boxes:
        in_source = all(row["sx1"] is not None for row in trace.boxes)
        picture = _picture(trace, first=in_source)
        rows = [_in_source(row) for row in trace.boxes] if in_source else trace.boxes
        kinds = [[row for row in rows if row["kind"] == kind] for kind in ("target", "predicted")]
        return None if picture is None else draw_overlay(picture, *kinds)
    masks = {row["kind"]: _mask(row["data"]) for row in trace.masks if row["data"] is not None}
    picture = _picture(trace, first=False) if masks else None
    return None if picture is None else draw_overlay(picture, masks.get("target"), masks.get("predicted"))


def _in_source(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**row, **{name: row[source] for name, source in _PLACES}}


def _mask(data: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(open_picture(data))


def _picture(trace: Trace, *, first: bool) -> Image.Image | None:
    stages: Sequence[Any] = [
        row
        for row in trace.stages
        if row["kind"] in ("image", "tensor") and not (row["path"] or "").startswith("target")
    ]
    if not stages:
        return None
    value = trace.value((stages[0] if first else stages[-1])["stage"])
    if isinstance(value, Image.Image):
        return value
    pixels = np.asarray(value, dtype=np.float32)
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        return None
    low, high = float(np.nanmin(pixels)), float(np.nanmax(pixels))
    scaled = np.nan_to_num((pixels - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
    return Image.fromarray(scaled[0] if len(scaled) == 1 else scaled.transpose(1, 2, 0))
