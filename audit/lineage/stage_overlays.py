"""The boxes and masks of one visit at each of its stages, in the pixels of that stage: what a page draws over a picture.

Targets of a joint stage are those that it returned. Everything else is known in the model's input and is moved back
through the stages, as far as their geometry is known; where it is not, a stage has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from audit.class_names import name_class
from audit.errors import AuditError, NeedsTrust, NotFound
from audit.metrics.source_space import SourceSpace, output_size, own_stage_names, place_in_stages
from audit.picture_formats import open_picture
from audit.values.joint_value import as_picture, find_joint
from audit.values.overlay import DrawnBox, draw_overlay

if TYPE_CHECKING:
    from audit.lineage.trace import Trace, TracedStage

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class OverlayBox:
    """One box in the pixels of a stage's picture."""

    #: `target` or `predicted`.
    kind: str
    x1: float
    y1: float
    x2: float
    y2: float
    class_number: int | None = None
    class_name: str | None = None
    score: float | None = None
    #: `tp`, `fp` or `fn`; None where it was not graded.
    outcome: str | None = None
    #: x, y and visibility of each keypoint, one after the other.
    keypoints: list[float] | None = None

    def as_drawn(self) -> DrawnBox:
        """Return it as `draw_overlay` takes it."""
        return {
            "x1": self.x1, "y1": self.y1, "x2": self.x2, "y2": self.y2, "class_": self.class_number, "class_name": self.class_name,
            "score": self.score, "outcome": self.outcome, "keypoints": self.keypoints,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class OverlayMask:
    """A mask of class numbers. It covers the whole picture; a stored preview has fewer pixels than the picture."""

    #: `target` or `predicted`.
    kind: str
    mask: Array


@dataclass(frozen=True, slots=True)
class StageOverlay:
    """What lies over the picture of one stage."""

    stage: int
    name: str
    #: Height and width of the stage's picture, in which the boxes lie.
    height: int
    width: int
    boxes: list[OverlayBox] = field(default_factory=list)
    masks: list[OverlayMask] = field(default_factory=list)

    def draw(self, picture: Image.Image) -> Image.Image:
        """Return the stage's picture with its boxes, or else its masks."""
        if self.boxes:
            drawn = [[box.as_drawn() for box in self.boxes if box.kind == kind] for kind in ("target", "predicted")]
            return draw_overlay(picture, *drawn)
        masks = {one.kind: one.mask for one in self.masks}
        return draw_overlay(picture, masks.get("target"), masks.get("predicted"))


def stage_overlays(trace: Trace) -> list[StageOverlay]:
    """Return the boxes and masks at each stage that gives a picture, in order; stages without any are left out.

    Reads what is stored, and derives nothing.
    """
    stages = [row for row in trace.stages if not (row["path"] or "").startswith("target")]
    own = own_stage_names(trace.reader.stages(trace.run.run_id))
    spaces = place_in_stages(stages, own)
    last = max((row["stage"] for row in stages if output_size(row) is not None), default=None)
    found = []
    for row in stages:
        size = output_size(row)
        if size is None:
            continue
        boxes = [*_targets(trace, row, spaces[row["stage"]]), *_graded_boxes(trace, spaces[row["stage"]], "predicted")]
        masks = _masks(trace, row, is_last=row["stage"] == last)
        if boxes or masks:
            found.append(StageOverlay(row["stage"], row["name"], *size, boxes, masks))
    return found


def stage_picture(trace: Trace, stage: int) -> Image.Image | None:
    """Return the picture of a stage, also of one that returns it together with a target; None if it has none."""
    value = trace.value(stage)
    joint = find_joint(value)
    return as_picture(value if joint is None else joint.picture)


def _targets(trace: Trace, row: TracedStage, space: SourceSpace | None) -> list[OverlayBox]:
    said = json.loads(row["target"]) if row["target"] else {}
    if "boxes" not in said:
        # The stage has the picture alone: its target is that of the item, which lies in the model's input.
        return [] if said else _graded_boxes(trace, space, "target")
    graded = [box for box in trace.boxes if box["kind"] == "target"]
    is_same = [box["class_"] for box in graded] == said["classes"]
    return [
        OverlayBox(
            "target",
            *_corners(corners),
            class_number=number,
            class_name=name_class(trace.run.classes, number),
            outcome=graded[at]["outcome"] if is_same else None,
        )
        for at, (corners, number) in enumerate(zip(said["boxes"], said["classes"], strict=True))
    ]


def _graded_boxes(trace: Trace, space: SourceSpace | None, kind: str) -> list[OverlayBox]:
    rows = [row for row in trace.boxes if row["kind"] == kind]
    if space is None or not rows:
        return []
    placed = space.locate(np.array([[row["x1"], row["y1"], row["x2"], row["y2"]] for row in rows], dtype=np.float64))
    return [
        OverlayBox(
            kind,
            *_corners(corners),
            class_number=row["class_"],
            class_name=row["class_name"],
            score=row["score"],
            outcome=row["outcome"],
            keypoints=_move_points(space, row["keypoints"]),
        )
        for row, corners in zip(rows, placed.tolist(), strict=True)
    ]


def _move_points(space: SourceSpace, keypoints: Sequence[float] | None) -> list[float] | None:
    if keypoints is None:
        return None
    points = np.array(keypoints, dtype=np.float64).reshape(-1, 3)
    points[:, :2] = space.locate(np.concatenate([points[:, :2], points[:, :2]], axis=1))[:, :2]
    return [float(number) for number in points.reshape(-1)]


def _corners(corners: Sequence[float | None]) -> tuple[float, float, float, float]:
    """Return x1, y1, x2, y2; JSON has no NaN."""
    x1, y1, x2, y2 = (float("nan") if number is None else float(number) for number in corners)
    return x1, y1, x2, y2


def _masks(trace: Trace, row: TracedStage, *, is_last: bool) -> list[OverlayMask]:
    masks = {}
    if row["target"] and "mask" in json.loads(row["target"]) and trace.is_stored(row["stage"]):
        try:
            joint = find_joint(trace.value(row["stage"], numpy_only=True))
        except AuditError:
            joint = None  # a class that only its own code can read
        if joint is not None and joint.mask is not None:
            masks["target"] = joint.mask
    if is_last:
        graded = {one["kind"]: one["data"] for one in trace.masks if one["data"] is not None}
        masks = {kind: np.asarray(open_picture(data)) for kind, data in graded.items()} | masks
    return [OverlayMask(kind, mask) for kind, mask in masks.items()]


def export_overlays(trace: Trace, folder: Path, stems: Mapping[int, str]) -> list[Path]:
    """Write each stage's picture with what lies over it, and as `overlay.png` the one that shows all of the visit."""
    written = []
    overlays = trace.overlays
    for overlay in overlays:
        try:
            picture = stage_picture(trace, overlay.stage)
        except (NeedsTrust, NotFound):
            continue  # the missing picture is named in place of its stage
        if picture is None:
            continue
        drawn = overlay.draw(picture)
        written.append(folder / f"{stems[overlay.stage]}-overlay.png")
        drawn.save(written[-1])
        if overlay is _fullest_stage(overlays):
            drawn.save(folder / "overlay.png")
            written.append(folder / "overlay.png")
    return written


def _fullest_stage(overlays: list[StageOverlay]) -> StageOverlay:
    """Return the first stage with as many boxes as any has; for masks the one with the model's beside the target."""
    return max(overlays, key=lambda overlay: (len(overlay.boxes), len(overlay.masks)))
