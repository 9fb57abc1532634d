"""Outputs of models that do not give one row of numbers for each sample: boxes, masks and tokens.

Each reader takes what a model returned and gives it in one form, or raises `UnclearOutput` with a sentence that says what is
wrong. Nothing is guessed: a list of dicts with boxes is evident; scores for each pixel are evident beside a mask of classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from audit.errors import UnclearOutput
from audit.metrics.boxes import Boxes
from audit.models.meaning import sums_to_one
from audit.models.score_scale import UNCLEAR, ScoreScale, as_logits


@dataclass(frozen=True, slots=True)
class DetectorOutput:
    """The boxes that a detector gave, picture by picture."""

    pictures: list[Boxes]
    kind: str = "boxes"


@dataclass(frozen=True, slots=True)
class MaskOutput:
    """The scores (N, C, H, W) of each class at each pixel, as logits."""

    scores: torch.Tensor | list[torch.Tensor]
    kind: str = "masks"
    #: Whether the scores are logits, so that they have a loss.
    has_loss: bool = True


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """The scores (N, T, V) of each token at each position, as logits."""

    scores: torch.Tensor | list[torch.Tensor]
    kind: str = "tokens"


TaskOutput = DetectorOutput | MaskOutput | TokenOutput
#: Kinds of output that are read here, with what shows each where it was not declared.
TASK_KINDS = {
    "boxes": "The model returned a list of dicts with boxes, labels and scores.",
    "masks": "The model returned scores for each pixel, and the targets are masks of class numbers.",
    "tokens": "It was declared.",
}


def join_outputs(parts: list[TaskOutput]) -> TaskOutput:
    """Return the outputs of several calls, one sample each, as one."""
    first = parts[0]
    if isinstance(first, DetectorOutput):
        return DetectorOutput([one for part in parts if isinstance(part, DetectorOutput) for one in part.pictures])
    scores = [one for part in parts if not isinstance(part, DetectorOutput) for one in part.scores]
    if isinstance(first, MaskOutput):
        return MaskOutput(scores, has_loss=all(part.has_loss for part in parts if isinstance(part, MaskOutput)))
    return TokenOutput(scores)


def is_losses(output: Any) -> bool:
    """Return whether a model gave its losses, as torchvision's detectors do in training mode: single numbers by name.

    A number without an axis is of the whole batch, whatever its name; one in a list may be that of a batch of one.
    """
    if not isinstance(output, Mapping) or not output:
        return False
    values = list(output.values())
    if not all(isinstance(one, torch.Tensor) and one.numel() == 1 and one.dim() <= 1 for one in values):
        return False
    return all(one.dim() == 0 for one in values) or all("loss" in str(name) for name in output)


def looks_like_boxes(output: Any) -> bool:
    """Return whether it is a list of dicts with boxes, labels and scores, one for each picture."""
    return (
        isinstance(output, (list, tuple))
        and bool(output)
        and all(isinstance(one, Mapping) and {"boxes", "labels", "scores"} <= set(one) for one in output)
    )


def read_boxes(output: Any, count: int, name: str) -> DetectorOutput:
    """Return the boxes of each picture."""
    if not looks_like_boxes(output):
        raise UnclearOutput(
            f"The model {name} returned {describe_output(output)}, and not a list of dicts with boxes, labels and scores.",
            hint="Wrap it in a module that returns such a list, one dict for each picture.",
        )
    if len(output) != count:
        raise UnclearOutput(
            f"The model {name} was given {count} pictures and returned boxes of {len(output)}: these are not recorded.",
            hint="Return one dict for each picture.",
        )
    return DetectorOutput([_picture(one, name) for one in output])


def _picture(found: Mapping[Any, Any], name: str) -> Boxes:
    arrays = {key: np.asarray(torch.as_tensor(found[key]).detach().cpu()) for key in ("boxes", "labels", "scores")}
    boxes = arrays["boxes"].astype(np.float64)
    boxes = boxes.reshape(-1, 4) if boxes.size == 0 else boxes
    classes, scores = arrays["labels"].reshape(-1), arrays["scores"].reshape(-1)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or not len(boxes) == len(classes) == len(scores):
        raise UnclearOutput(
            f"The model {name} returned boxes of shape {boxes.shape} with {len(classes)} labels and {len(scores)} scores.",
            hint="Boxes are (n, 4), with one label and one score for each.",
        )
    points = _points(found, "keypoints", (len(boxes), 3), name)
    marks = _points(found, "keypoints_scores", (len(boxes),), name)
    if points is None or marks is None or marks.shape != points.shape[:2]:
        marks = None
    return Boxes(boxes, classes.astype(np.int64), scores.astype(np.float64), keypoints=points, keypoint_scores=marks)


def _points(found: Mapping[Any, Any], key: str, ends: tuple[int, ...], name: str) -> np.ndarray[Any, Any] | None:
    """Return an entry that is by box, then by keypoint; None if it is not there or empty."""
    if key not in found or not ends[0]:
        return None
    values = np.asarray(torch.as_tensor(found[key]).detach().cpu()).astype(np.float64)
    if values.ndim != len(ends) + 1 or (values.shape[0], *values.shape[2:]) != ends:
        raise UnclearOutput(
            f"The model {name} returned {ends[0]} boxes and {key} of shape {values.shape}.",
            hint="Keypoints are (n, K, 3) and their scores (n, K), for the n boxes of a picture.",
        )
    return values


def pixel_scores(output: Any) -> torch.Tensor | None:
    """Return scores (N, C, H, W): the tensor itself, or the entry `out` of torchvision's segmentation networks."""
    if isinstance(output, Mapping) and isinstance(output.get("out"), torch.Tensor):
        output = output["out"]
    if not isinstance(output, torch.Tensor) and isinstance(getattr(output, "logits", None), torch.Tensor):
        output = output.logits
    is_scores = isinstance(output, torch.Tensor) and output.dim() == 4 and output.is_floating_point()
    return output if is_scores else None


def looks_like_masks(output: Any, targets: list[Any]) -> bool:
    """Return whether there are scores for each pixel beside masks of class numbers."""
    scores = pixel_scores(output)
    return scores is not None and scores.shape[1] > 1 and any(is_mask(target) for target in targets)


def is_mask(target: Any) -> bool:
    """Return whether a target is a mask (H, W) of class numbers."""
    return isinstance(target, np.ndarray) and target.ndim == 2 and target.dtype.kind in "iub"


def read_masks(output: Any, count: int, name: str, scale: ScoreScale) -> MaskOutput:
    """Return the scores of each class at each pixel. Raise UnclearOutput where nothing shows whether one class is a logit."""
    scores = pixel_scores(output)
    if scores is None:
        raise UnclearOutput(
            f"The model {name} returned {describe_output(output)}, and not scores (N, C, H, W) of each class at each pixel.",
            hint="Pick the tensor with logits=: a key, a position or a function.",
        )
    _require_count(scores, count, name, "masks")
    _require_classes(scores, scores.shape[1], name)
    found = scale.read(scores, exclusive=True)
    if found is None and scores.shape[1] == 1:
        said, _, hint = UNCLEAR.format(result="these masks are not recorded").partition(" Say ")
        raise UnclearOutput(f"The masks of the model {name}: {said}", hint=f"Say {hint}")
    # Shares that do not add up to 1, of a sigmoid for each class, have a largest one and no cross entropy.
    has_loss = found == "logits" or (
        found == "probabilities" and (scores.shape[1] == 1 or sums_to_one(scores.detach()))
    )
    scores = scores.detach()
    return MaskOutput(as_logits(scores) if found == "probabilities" and has_loss else scores, has_loss=has_loss)


def read_tokens(output: Any, count: int, name: str, length: int | None, scale: ScoreScale) -> TokenOutput:
    """Return the scores of each token at each position; `length` is the number of positions that targets have."""
    found = output if isinstance(output, torch.Tensor) else getattr(output, "logits", None)
    if found is None and isinstance(output, Mapping):
        found = output.get("logits")
    if not isinstance(found, torch.Tensor) or found.dim() != 3 or not found.is_floating_point():
        raise UnclearOutput(
            f"The model {name} returned {describe_output(output)}, and not scores (N, T, V) of each token at each position.",
            hint="Pick the tensor with logits=: a key, a position or a function.",
        )
    _require_count(found, count, name, "sequences")
    if length is not None and found.shape[1] != length and found.shape[2] == length:
        found = found.transpose(1, 2)  # (N, V, T), as torch's cross entropy takes it
    _require_classes(found, found.shape[2], name)
    found = found.detach()
    is_shares = scale.read(found.transpose(1, 2), exclusive=True) == "probabilities" and sums_to_one(
        found.transpose(1, 2)
    )
    return TokenOutput(as_logits(found.transpose(1, 2)).transpose(1, 2) if is_shares else found)


def _require_count(scores: torch.Tensor, count: int, name: str, what: str) -> None:
    if scores.shape[0] != count:
        raise UnclearOutput(
            f"The model {name} was given {count} samples and returned {what} of {scores.shape[0]}: these are not recorded.",
            hint="Return one row for each sample.",
        )


def _require_classes(scores: torch.Tensor, classes: int, name: str) -> None:
    if not classes:
        raise UnclearOutput(
            f"The model {name} returned a tensor of shape {tuple(scores.shape)}: it has no classes.",
            hint="Return a score for each class.",
        )


def describe_output(output: Any) -> str:
    """Return what a model returned, in a few words."""
    if isinstance(output, torch.Tensor):
        return f"a tensor of shape {tuple(output.shape)}"
    if output is None:
        return "None"
    return f"a {type(output).__name__}"
