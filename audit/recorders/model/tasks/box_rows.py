"""Rows of predicted boxes beside those of their targets."""

from __future__ import annotations

import numpy as np

from audit.class_names import name_class
from audit.metrics.box_matching import match_picture
from audit.metrics.boxes import Boxes
from audit.metrics.keypoints import keypoint_similarity
from audit.recorders.model.tasks.task_rows import TaskContext, TaskRows

#: The overlap from which a box is a hit.
OVERLAP = 0.5


def add_boxes(rows: TaskRows, sample: int, predicted: Boxes, context: TaskContext) -> None:
    """Add the rows of one picture's boxes."""
    target = context.targets[sample] if isinstance(context.targets[sample], Boxes) else None
    found = _match(rows, predicted, target)
    similar = _similarities(rows, predicted, target, found)
    for kind, boxes in (("target", target), ("predicted", predicted)):
        if boxes is None:
            continue
        if context.classes is not None and any(not 0 <= number < len(context.classes) for number in boxes.classes):
            rows.mark(
                f"A {kind} box has a class number beyond the {len(context.classes)} known classes: it has no name."
            )
        space = context.spaces[sample] if context.spaces else None
        placed = space.locate(boxes.boxes) if space is not None else None
        for number in range(len(boxes)):
            partner, overlap, outcome = found[kind][number]
            source = (
                dict(zip(("sx1", "sy1", "sx2", "sy2"), placed[number].tolist(), strict=True))
                if placed is not None
                else {}
            )
            corners = dict(zip(("x1", "y1", "x2", "y2"), boxes.boxes[number].tolist(), strict=True))
            rows.add(
                "boxes",
                sample,
                box=number,
                kind=kind,
                score=float(boxes.scores[number]) if boxes.scores is not None else None,
                class_name=name_class(context.classes, int(boxes.classes[number])),
                matched=partner,
                iou=overlap,
                outcome=outcome,
                crowd=bool(boxes.crowd[number]) if boxes.crowd is not None else None,
                keypoints=boxes.keypoints[number].reshape(-1).tolist() if boxes.keypoints is not None else None,
                keypoint_scores=boxes.keypoint_scores[number].tolist() if boxes.keypoint_scores is not None else None,
                oks=similar[kind].get(number),
                area=float(boxes.areas[number]) if boxes.areas is not None else None,
                **{"class": int(boxes.classes[number])},
                **corners,
                **source,
            )


Outcome = tuple[int | None, float | None, str | None]
#: What is said of a box that nothing can be compared with.
_INVALID = (
    "A {kind} box has NaN or infinite numbers, or an end before its beginning: such boxes are recorded and not graded."
)


def _similarities(
    rows: TaskRows, predicted: Boxes, target: Boxes | None, found: dict[str, list[Outcome]]
) -> dict[str, dict[int, float | None]]:
    """Return, by kind and box, how well the keypoints of matched boxes agree."""
    similar: dict[str, dict[int, float | None]] = {"predicted": {}, "target": {}}
    if target is None or predicted.keypoints is None or target.keypoints is None:
        return similar
    for number, (partner, _, outcome) in enumerate(found["predicted"]):
        if partner is not None and outcome is not None:
            area = float(target.areas[partner]) if target.areas is not None else None
            value = keypoint_similarity(
                predicted.keypoints[number], target.keypoints[partner], target.boxes[partner], area
            )
            similar["predicted"][number] = similar["target"][partner] = value
            if value is None:
                rows.mark(
                    "The keypoints of a box cannot be compared with those of its target: they have NaN, or are not COCO's 17 "
                    "points of a person. They are recorded without a similarity."
                )
    return similar


def _match(rows: TaskRows, predicted: Boxes, target: Boxes | None) -> dict[str, list[Outcome]]:
    """Return partner, overlap and outcome of each box, by kind. What cannot be compared has none of them."""
    nothing: Outcome = (None, None, None)
    found: dict[str, list[Outcome]] = {"predicted": [nothing] * len(predicted)}
    if not predicted.is_valid.all():
        rows.mark(_INVALID.format(kind="predicted"))
    if target is None:
        return found
    found["target"] = [nothing] * len(target)
    if not target.is_valid.all():
        rows.mark(_INVALID.format(kind="target"))
    mine, theirs = np.flatnonzero(predicted.is_valid), np.flatnonzero(target.is_valid)
    crowd = target.crowd if target.crowd is not None else np.zeros(len(target), dtype=bool)
    scores = predicted.scores if predicted.scores is not None else np.ones(len(predicted))
    matches, shared = match_picture(
        predicted.boxes[mine],
        predicted.classes[mine],
        scores[mine],
        target.boxes[theirs],
        target.classes[theirs],
        crowd[theirs],
        OVERLAP,
    )
    for place, number in enumerate(mine):
        partner = int(matches.predicted[place])
        if partner < 0:
            # A target of this class without a place may be the one that was found.
            is_open = predicted.classes[number] in target.classes[~target.is_valid]
            found["predicted"][number] = (None, None, None if is_open else "fp")
        else:
            outcome = None if crowd[theirs[partner]] else "tp"
            found["predicted"][number] = (int(theirs[partner]), float(shared[place, partner]), outcome)
    for place, number in enumerate(theirs):
        partner = int(matches.targets[place])
        if crowd[number]:
            continue
        if partner < 0:
            found["target"][number] = (None, None, "fn")
        else:
            found["target"][number] = (int(mine[partner]), float(shared[partner, place]), "tp")
    return found
