"""Logits become rows: probabilities and all that follows from them, for a whole batch at once.

Non-finite logits are kept as they are. A row that has any gets no predicted class and no confidence, because
an argmax over NaN means nothing; with a label it counts as wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from audit.models.outputs import probabilities_of


def prediction_columns(
    logits: torch.Tensor, labels: Sequence[int | None], classes: Sequence[str] | None
) -> dict[str, Any]:
    """The columns of `predictions` that follow from logits (N, C) and labels."""
    logits = logits.detach().to("cpu", torch.float32)
    probabilities = probabilities_of(logits).numpy().astype(np.float64)
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
        "loss": _where(inside, _loss(logits, at)),
        "margin": _where(finite, (top - second).astype(np.float32)),
        "entropy": _where(finite, entropy.astype(np.float32)),
        "label_rank": _where(inside & finite, rank.astype(np.int32)),
        "logits": logits.numpy(),
        "probabilities": probabilities.astype(np.float32),
    }


def _loss(logits: torch.Tensor, at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Cross entropy of each row, from the logits: the logarithm of a rounded probability would lose digits."""
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
