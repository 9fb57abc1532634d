"""Rows of predictions that are boxes, masks or tokens, and what is said of targets that do not fit them.

A row here has the number of its sample among those of the call; who writes it adds the keys.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from audit import values
from audit.metrics.box_matching import match_picture
from audit.metrics.boxes import Boxes
from audit.metrics.keypoints import keypoint_similarity
from audit.metrics.mask_scores import counted_pixels, score_mask
from audit.metrics.source_space import SourceSpace
from audit.models.task_outputs import DetectorOutput, MaskOutput, TaskOutput, TokenOutput, is_mask

Array = np.ndarray[Any, Any]

#: The overlap from which a box is a hit.
OVERLAP = 0.5
#: Positions with this target are not part of a sequence (torch's cross entropy leaves them out).
IGNORED_TOKEN = -100
_PREVIEW = 96


@dataclass(slots=True)
class TaskRows:
    """Rows by table, columns of `predictions`, and sentences on what could not be graded."""

    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    columns: dict[str, list[Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def payload_bytes(self) -> int:
        """How many bytes of values the rows keep."""
        return sum(len(row.get("data") or b"") for rows in self.tables.values() for row in rows)

    @property
    def has_samples(self) -> bool:
        """Whether a row is of a sample, and not of the whole call."""
        return any(row["sample"] is not None for rows in self.tables.values() for row in rows)

    def add(self, table: str, sample: int | None, **row: Any) -> None:
        """Add a row of one of the call's samples; None: of the whole call."""
        self.tables.setdefault(table, []).append({"sample": sample, **row})

    def mark(self, problem: str) -> None:
        """Keep a sentence, once."""
        if problem not in self.problems:
            self.problems.append(problem)


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What is known of the samples of a call: lists are by sample."""

    #: The rows of the output that are samples.
    inputs: Sequence[int]
    targets: Sequence[Any]
    classes: Sequence[str] | None
    #: The class number that each sample has.
    labels: Sequence[int | None] = ()
    level: str = "digest"
    #: Where each sample's input lies in its source.
    spaces: Sequence[SourceSpace | None] = ()
    #: What the model was given, where it was token numbers (N, T).
    tokens: torch.Tensor | None = None


def make_task_rows(output: TaskOutput, context: TaskContext) -> TaskRows:
    """Return the rows of a call's output."""
    rows = TaskRows()
    if isinstance(output, MaskOutput):
        context = replace(context, targets=list(map(_as_mask, context.targets)))
    losses: list[float | None] = [None] * len(context.inputs)
    for sample, place in enumerate(context.inputs):
        if isinstance(output, DetectorOutput):
            _add_boxes(rows, sample, output.pictures[place], context)
        elif isinstance(output, MaskOutput):
            losses[sample] = _add_masks(rows, sample, output.scores[place], context)
        elif isinstance(output, TokenOutput):
            losses[sample] = _add_tokens(rows, sample, output.scores[place], context)
    rows.columns["loss"] = losses
    if _has_other_targets(output, context):
        rows.mark(f"A target is not {_TARGETS[output.kind]}: such samples are recorded and not graded.")
    return rows


#: What the target of each task is.
_TARGETS = {
    "boxes": "a dict with boxes and labels, or a list of annotations",
    "masks": "a mask of whole numbers",
    "tokens": "a sequence of whole numbers",
}


def _has_other_targets(output: TaskOutput, context: TaskContext) -> bool:
    """Return whether a sample has a target of another task, or none while others of its batch have one."""
    fits = {"boxes": lambda one: isinstance(one, Boxes), "masks": is_mask, "tokens": _is_sequence}[output.kind]
    others = [target for target in context.targets if not fits(target)]
    is_known = len(others) < len(context.targets) or any(label is not None for label in context.labels)
    return any(target is not None for target in others) or (bool(others) and is_known)


def _as_mask(target: Any) -> Any:
    """Return a mask whose whole numbers have another form, (1, H, W) or floating point, as (H, W) of integers."""
    if not isinstance(target, np.ndarray):
        return target
    flat = target[0] if target.ndim == 3 and target.shape[0] == 1 else target
    is_whole = flat.dtype.kind == "f" and bool((np.isfinite(flat) & (np.mod(flat, 1) == 0)).all())
    return flat.astype(np.int64) if is_whole else flat


def _is_sequence(target: Any) -> bool:
    return isinstance(target, np.ndarray) and target.ndim == 1 and np.issubdtype(target.dtype, np.integer)


def _name(classes: Sequence[str] | None, number: int) -> str | None:
    return classes[number] if classes is not None and 0 <= number < len(classes) else None


# -- boxes -----------------------------------------------------------------------------------------


def _add_boxes(rows: TaskRows, sample: int, predicted: Boxes, context: TaskContext) -> None:
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
                class_name=_name(context.classes, int(boxes.classes[number])),
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


# -- masks -----------------------------------------------------------------------------------------


def _add_masks(rows: TaskRows, sample: int, scores: torch.Tensor, context: TaskContext) -> float | None:
    """Add the rows of one predicted mask; return its mean loss."""
    scores = scores.detach().float().cpu()
    if not bool(torch.isfinite(scores).all()):
        rows.mark("A mask has scores that are NaN or infinite: such masks are neither recorded nor graded.")
        return None
    width = scores.shape[0]
    predicted = scores.argmax(0).numpy() if width > 1 else (scores[0] > 0).long().numpy()
    _add_mask(rows, sample, "predicted", predicted, context.level)
    target = context.targets[sample]
    if not is_mask(target):
        return None
    target = target.astype(np.int64)
    _add_mask(rows, sample, "target", target, context.level)
    if target.shape != predicted.shape:
        rows.mark(
            f"A target mask is {_size(target)} and the predicted one {_size(predicted)}: such masks are recorded and not "
            "graded. Resize the target with the picture, or the output to the target."
        )
        return None
    counted = counted_pixels(target, width)
    if not counted.any():
        rows.mark(
            "A target mask has no pixel that counts (it is empty, or every pixel is negative or 255): such masks are recorded "
            "and not graded."
        )
    if bool((target >= max(width, 2))[counted].any()):
        rows.mark(f"A target mask has class numbers that the model has no output for (it has {width}).")
    for score in score_mask(predicted, target, counted):
        rows.add(
            "mask_scores",
            sample,
            class_name=_name(context.classes, score.number),
            target_pixels=score.target,
            predicted_pixels=score.predicted,
            shared_pixels=score.shared,
            iou=score.iou,
            accuracy=score.accuracy,
            **{"class": score.number},
        )
    return _mask_loss(scores, target, counted & (target < max(width, 2)))


def _mask_loss(scores: torch.Tensor, target: Array, counted: Array) -> float | None:
    if not counted.any():
        return None
    wanted = torch.from_numpy(np.where(counted, target, IGNORED_TOKEN))
    if scores.shape[0] == 1:
        chosen = torch.from_numpy(counted)
        return float(functional.binary_cross_entropy_with_logits(scores[0][chosen], wanted[chosen].float()))
    return float(functional.cross_entropy(scores[None], wanted[None], ignore_index=IGNORED_TOKEN))


def _size(mask: Array) -> str:
    return f"{mask.shape[1]} × {mask.shape[0]}"


def _add_mask(rows: TaskRows, sample: int, kind: str, mask: Array, level: str) -> None:
    height, width = mask.shape
    data = form = None
    if level != "digest" and mask.size and mask.min() >= 0 and mask.max() < 2**16:
        step = 1 if level == "full" else max(1, -(-max(height, width) // _PREVIEW))
        form = "full" if step == 1 else "preview"
        data = mask_png(mask[::step, ::step])
    digest = values.digest(torch.from_numpy(np.ascontiguousarray(mask, dtype=np.int64)))
    rows.add("masks", sample, kind=kind, height=height, width=width, digest=digest, form=form, data=data)


def mask_png(mask: Array) -> bytes:
    """Return class numbers as a PNG of 8 bits, or of 16 where they need it."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(mask.astype(np.uint8 if mask.max(initial=0) < 256 else np.uint16)).save(buffer, "PNG")
    return buffer.getvalue()


# -- tokens ----------------------------------------------------------------------------------------


def _add_tokens(rows: TaskRows, sample: int, scores: torch.Tensor, context: TaskContext) -> float | None:
    """Add the rows of one sequence; return its mean loss."""
    scores = scores.detach().float().cpu()
    wanted = _wanted_tokens(rows, sample, scores, context)
    finite = torch.isfinite(scores).all(1)
    if not bool(finite.all()):
        rows.mark("A position has scores that are NaN or infinite: it has no predicted token, and counts as wrong.")
    if not len(scores) or (wanted is not None and bool((wanted == IGNORED_TOKEN).all())):
        rows.mark("A sequence has no position that counts (it is empty, or every target is -100): it is not graded.")
    logs = functional.log_softmax(scores, dim=1)
    best = scores.argmax(1)
    inside = None if wanted is None else (wanted >= 0) & (wanted < scores.shape[1])
    chosen = best if wanted is None or inside is None else torch.where(inside, wanted, best)
    logged = logs[torch.arange(len(scores)), chosen]
    losses = []
    for position in range(len(scores)):
        target = None if wanted is None else int(wanted[position])
        if target == IGNORED_TOKEN:
            continue
        known = bool(finite[position])
        is_graded = known and target is not None and inside is not None and bool(inside[position])
        loss = -float(logged[position]) if is_graded else None
        if loss is not None:
            losses.append(loss)
        predicted = int(best[position]) if known else None
        has_probability = is_graded or (known and target is None)
        rows.add(
            "tokens",
            sample,
            position=position,
            target=target,
            predicted=predicted,
            probability=float(logged[position].exp()) if has_probability else None,
            loss=loss,
            # Losses leave negative targets out (ignore_index); one beyond the outputs can never be right.
            correct=None if target is None or target < 0 else predicted == target,
        )
    return sum(losses) / len(losses) if losses else None


def _wanted_tokens(rows: TaskRows, sample: int, scores: torch.Tensor, context: TaskContext) -> torch.Tensor | None:
    """Return the target of each position; None if there are none that fit."""
    target = context.targets[sample]
    if not _is_sequence(target):
        return None
    if len(target) != len(scores):
        rows.mark(f"A sequence has {len(target)} targets and {len(scores)} outputs: such sequences are not graded.")
        return None
    wanted = torch.from_numpy(target.astype(np.int64))
    if is_next_token(context, sample, wanted):
        # Hugging Face's convention: the output at a position is for the token after it.
        wanted = torch.cat([wanted[1:], wanted.new_full((1,), IGNORED_TOKEN)])
    if bool(((wanted != IGNORED_TOKEN) & ((wanted < 0) | (wanted >= scores.shape[1]))).any()):
        rows.mark(f"A target token is beyond the model's {scores.shape[1]} outputs: such tokens have no loss.")
    return wanted


def is_next_token(context: TaskContext, sample: int, wanted: torch.Tensor) -> bool:
    """Return whether the targets are the model's own input, so that each output is for the next token."""
    given = context.tokens
    if given is None or given.dim() != 2 or given.shape[1] != len(wanted) or given.is_floating_point():
        return False
    counted = wanted != IGNORED_TOKEN
    return bool(counted.any()) and bool((given[context.inputs[sample]].cpu()[counted] == wanted[counted]).all())
