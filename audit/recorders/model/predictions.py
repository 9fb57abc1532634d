"""A model's output becomes rows: probabilities and all that follows from them, for a whole batch at once.

Non-finite logits are kept as they are. A row that has any gets no predicted class and no confidence, because
an argmax over NaN means nothing; with a label it counts as wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from audit.errors import UnclearOutput
from audit.models.outputs import probabilities_of

#: Kinds of output from which one class is predicted.
_CLASSIFIED = ("logits", "probabilities", "log_probabilities", "sigmoid")


def prediction_columns(
    values: torch.Tensor,
    labels: Sequence[int | None],
    classes: Sequence[str] | None,
    kind: str = "logits",
    targets: torch.Tensor | None = None,
) -> dict[str, Any]:
    """Return the columns of `predictions` that follow from an output (N, C) of this kind, labels and targets."""
    values = values.detach().to("cpu", torch.float32)
    if kind in ("regression", "embedding"):
        return _measured(
            values, labels, classes, targets if kind == "regression" else None, graded=kind == "regression"
        )
    if kind == "multilabel":
        return _multilabel(values, labels, classes, targets)
    return _classified(values, labels, classes, kind)


def describe_label_problem(labels: Sequence[int | None], width: int, kind: str) -> str | None:
    """Return a sentence about labels that an output of this width has no class for; None if there are none."""
    classes = max(width, 2)
    if kind not in _CLASSIFIED or all(label is None or 0 <= label < classes for label in labels):
        return None
    return f"A label is not one of its {classes} classes: such samples have no loss, and count as wrong."


def _measured(
    values: torch.Tensor,
    labels: Sequence[int | None],
    classes: Sequence[str] | None,
    targets: torch.Tensor | None,
    *,
    graded: bool,
) -> dict[str, Any]:
    """Return the columns of numbers that are not classes: their loss is the mean squared error."""
    count = len(values)
    if targets is None and graded and all(label is not None for label in labels):
        targets = torch.tensor(list(labels), dtype=torch.float32)
    wanted = None if targets is None else targets.reshape(count, -1).float()
    if wanted is not None and wanted.shape[1] != values.shape[1]:
        raise UnclearOutput(
            f"The model gave {values.shape[1]} numbers for each sample, and its target has {wanted.shape[1]}.",
            hint="Pick the output that belongs to the target with logits=: a key, a position or a function.",
        )
    loss = None if wanted is None else ((values.double() - wanted.double()) ** 2).mean(1).tolist()
    return {
        "label": list(labels),
        "label_name": _names(classes, list(labels)),
        "loss": loss or [None] * count,
        "target": wanted.numpy() if wanted is not None else [None] * count,
        "output": values.numpy(),
    }


def _multilabel(
    values: torch.Tensor, labels: Sequence[int | None], classes: Sequence[str] | None, targets: torch.Tensor | None
) -> dict[str, Any]:
    """Return the columns where each class is decided by itself: a sample is correct when every class is."""
    count = len(values)
    is_score = bool(((values >= 0) & (values <= 1)).all())
    scores = values if is_score else torch.sigmoid(values)
    columns: dict[str, Any] = {
        "label": list(labels),
        "label_name": _names(classes, list(labels)),
        "logits": values.numpy(),
        "probabilities": scores.numpy(),
        "output": scores.numpy(),
    }
    if targets is not None and targets.reshape(count, -1).shape[1] == values.shape[1]:
        wanted = targets.reshape(count, -1).float()
        if is_score:
            losses = torch.nn.functional.binary_cross_entropy(scores, wanted.clamp(0, 1), reduction="none")
        else:
            losses = torch.nn.functional.binary_cross_entropy_with_logits(values, wanted, reduction="none")
        columns["loss"] = losses.mean(1).tolist()
        columns["correct"] = ((scores > 0.5) == (wanted > 0.5)).all(1).tolist()
        columns["target"] = wanted.numpy()
    return columns


def _classified(
    logits: torch.Tensor, labels: Sequence[int | None], classes: Sequence[str] | None, kind: str
) -> dict[str, Any]:
    probabilities = _probabilities(logits, kind).numpy().astype(np.float64)
    count, width = probabilities.shape
    rows = np.arange(count)
    finite: np.ndarray[Any, Any] = np.asarray(np.isfinite(probabilities).all(axis=1))
    safe = np.where(finite[:, None], probabilities, 0.0)
    order = np.argsort(-safe, axis=1, kind="stable")
    best = order[:, 0]
    top = safe[rows, best]
    second = safe[rows, order[:, 1]] if width > 1 else np.zeros(count)
    known = np.array([label is not None for label in labels])
    label = np.array([0 if value is None else value for value in labels], dtype=np.int64)
    inside = known & (label >= 0) & (label < width)
    at = np.where(inside, label, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(safe > 0, safe * np.log(safe), 0.0).sum(axis=1)
    rank = np.argmax(order == at[:, None], axis=1) + 1
    predicted = _where(finite, best)
    return {
        "label": _where(known, label),
        "label_name": _names(classes, _where(known, label)),
        "predicted": predicted,
        "predicted_name": _names(classes, predicted),
        "confidence": _where(finite, top.astype(np.float32)),
        "correct": _where(known, finite & inside & (best == label)),
        "loss": _where(inside, _loss(logits, probabilities, at, kind)),
        "margin": _where(finite, (top - second).astype(np.float32)),
        "entropy": _where(finite, entropy.astype(np.float32)),
        "label_rank": _where(inside & finite, rank.astype(np.int32)),
        "logits": logits.numpy(),
        "probabilities": probabilities.astype(np.float32),
    }


def _probabilities(values: torch.Tensor, kind: str) -> torch.Tensor:
    if kind in ("probabilities", "sigmoid"):
        return torch.cat([1 - values, values], dim=1) if values.shape[1] == 1 else values
    return values.exp() if kind == "log_probabilities" else probabilities_of(values)


def _loss(
    logits: torch.Tensor, probabilities: np.ndarray[Any, Any], at: np.ndarray[Any, Any], kind: str
) -> np.ndarray[Any, Any]:
    """Cross entropy of each row, from the logits: the logarithm of a rounded probability would lose digits."""
    if kind != "logits":
        with np.errstate(divide="ignore", invalid="ignore"):
            if kind == "log_probabilities":
                return np.asarray(-logits.numpy()[np.arange(len(at)), at])
            return np.asarray(-np.log(probabilities[np.arange(len(at)), at]))
    target = torch.from_numpy(at)
    if logits.shape[1] == 1:
        losses = torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], target.float(), reduction="none")
    else:
        losses = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    return losses.numpy()


def _where(condition: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> list[Any]:
    return [value if chosen else None for value, chosen in zip(values.tolist(), condition.tolist(), strict=True)]


def _names(classes: Sequence[str] | None, numbers: list[int | None]) -> list[str | None]:
    if classes is None:
        return [None] * len(numbers)
    return [classes[n] if n is not None and 0 <= n < len(classes) else None for n in numbers]
