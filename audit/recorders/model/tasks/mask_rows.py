"""Rows of predicted masks beside those of their targets."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from audit import values
from audit.class_names import name_class
from audit.metrics.mask_scores import find_counted_pixels, score_mask
from audit.models.task_outputs import is_mask
from audit.recorders.model.tasks.task_rows import IGNORED_TARGET, TaskContext, TaskRows

Array = np.ndarray[Any, Any]

#: The longer side of a preview, in pixels.
_PREVIEW = 96


def as_mask(target: Any) -> Any:
    """Return a mask whose whole numbers have another form, (1, H, W) or floating point, as (H, W) of integers."""
    if not isinstance(target, np.ndarray):
        return target
    flat = target[0] if target.ndim == 3 and target.shape[0] == 1 else target
    is_whole = flat.dtype.kind == "f" and bool((np.isfinite(flat) & (np.mod(flat, 1) == 0)).all())
    return flat.astype(np.int64) if is_whole else flat


def add_masks(
    rows: TaskRows, sample: int, scores: torch.Tensor, context: TaskContext, *, has_loss: bool = True
) -> float | None:
    """Add the rows of one predicted mask; return its mean loss, if its scores have one."""
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
    counted = find_counted_pixels(target, width)
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
            class_name=name_class(context.classes, score.number),
            target_pixels=score.target,
            predicted_pixels=score.predicted,
            shared_pixels=score.shared,
            iou=score.iou,
            accuracy=score.accuracy,
            **{"class": score.number},
        )
    if not has_loss:
        rows.mark(
            "Every score of the masks lies between 0 and 1, and those of a pixel do not add up to 1: they have no loss."
        )
        return None
    return _mask_loss(scores, target, counted & (target < max(width, 2)))


def _mask_loss(scores: torch.Tensor, target: Array, counted: Array) -> float | None:
    if not counted.any():
        return None
    wanted = torch.from_numpy(np.where(counted, target, IGNORED_TARGET))
    if scores.shape[0] == 1:
        chosen = torch.from_numpy(counted)
        return float(functional.binary_cross_entropy_with_logits(scores[0][chosen], wanted[chosen].float()))
    return float(functional.cross_entropy(scores[None], wanted[None], ignore_index=IGNORED_TARGET))


def _size(mask: Array) -> str:
    return f"{mask.shape[1]} × {mask.shape[0]}"


def _add_mask(rows: TaskRows, sample: int, kind: str, mask: Array, level: str) -> None:
    height, width = mask.shape
    data = form = None
    if level != "digest" and mask.size and mask.min() >= 0 and mask.max() < 2**16:
        step = 1 if level == "full" else max(1, -(-max(height, width) // _PREVIEW))
        form = "full" if step == 1 else "preview"
        data = _mask_png(mask[::step, ::step])
    digest = values.digest(torch.from_numpy(np.ascontiguousarray(mask, dtype=np.int64)))
    rows.add("masks", sample, kind=kind, height=height, width=width, digest=digest, form=form, data=data)


def _mask_png(mask: Array) -> bytes:
    """Return class numbers as a PNG of 8 bits, or of 16 where they need it."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(mask.astype(np.uint8 if mask.max(initial=0) < 256 else np.uint16)).save(buffer, "PNG")
    return buffer.getvalue()
