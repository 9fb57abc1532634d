"""A model's output becomes rows: probabilities and all that follows from them, for a whole batch at once.

Non-finite logits are kept as they are. A row that has any gets no predicted class and no confidence, because
an argmax over NaN means nothing; with a label it counts as wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from audit.class_names import name_class
from audit.errors import UnclearOutput
from audit.models.outputs import probabilities_of
from audit.values import native as loops

#: Torch's cross entropy leaves samples with this label out, and so does a grade.
IGNORED_LABEL = -100
#: The columns that the compiled loops make, in their order (values/_grade.h), and for so many numbers at most: they compute one
#: logarithm after the other, and numpy several at once.
_GRADES = (
    "label",
    "label_name",
    "predicted",
    "predicted_name",
    "confidence",
    "correct",
    "margin",
    "entropy",
    "label_rank",
)
_MOST_COMPILED = 4096
#: How far the sum of a soft label may be from 1.
_NEAR = 1e-3


def prediction_columns(
    values: torch.Tensor,
    labels: Sequence[int | None],
    classes: Sequence[str] | None,
    kind: str = "logits",
    targets: torch.Tensor | None = None,
    scale: str | None = "logits",
) -> dict[str, Any]:
    """Return the columns of `predictions` that follow from an output (N, C) of this kind, labels and targets.

    `scale` says of several labels whether they are `logits` or `probabilities`; None where that is not known.
    """
    values = values.detach().to("cpu", torch.float32)
    if kind in ("regression", "embedding"):
        return _measure(values, labels, classes, targets if kind == "regression" else None, graded=kind == "regression")
    if kind == "multilabel":
        return _multilabel(values, labels, classes, targets, scale)
    wanted = None if targets is None else _class_targets(targets, values.shape)
    labels = [None if label == IGNORED_LABEL else label for label in labels]
    if targets is not None and values.shape[1] == 1 and targets.numel() == len(values):
        labels = _binary_labels(labels, targets)
    if wanted is None:
        return _grade_classes(values, labels, classes, kind)
    return _compare_with_targets(values, labels, classes, kind, wanted)


def _binary_labels(labels: Sequence[int | None], targets: torch.Tensor) -> list[int | None]:
    """Return the classes of targets that are 0.0 or 1.0, as losses for a single output want them."""
    numbers = targets.flatten().tolist()
    return [
        int(number) if label is None and number in (0, 1) else label
        for label, number in zip(labels, numbers, strict=True)
    ]


def _class_targets(targets: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
    """Return targets that have a share for each class: rows as wide as the output that add up to 1; else None."""
    if tuple(targets.shape) != tuple(shape) or shape[1] < 2:
        return None
    wanted = targets.detach().to("cpu", torch.float64)
    is_share = bool((wanted >= 0).all()) and bool(((wanted.sum(1) - 1).abs() < _NEAR).all())
    return wanted if is_share else None


def _compare_with_targets(
    values: torch.Tensor,
    labels: Sequence[int | None],
    classes: Sequence[str] | None,
    kind: str,
    wanted: torch.Tensor,
) -> dict[str, Any]:
    """Return the columns where targets are shares of classes. A row with one class is its label; others are soft labels,
    with which a prediction agrees more or less: they have a loss, and are neither right nor wrong."""
    is_one_class = ((wanted == 0) | (wanted == 1)).all(1)
    best = wanted.argmax(1).tolist()
    known = [
        number if label is None and is_one else label
        for label, is_one, number in zip(labels, is_one_class.tolist(), best, strict=True)
    ]
    columns = _grade_classes(values, known, classes, kind)
    for place in torch.nonzero((~is_one_class) & torch.tensor([label is None for label in known])).flatten().tolist():
        logs = np.log(columns["probabilities"][place].astype(np.float64) + np.finfo(np.float64).tiny)
        if kind == "logits":
            logs = torch.log_softmax(values[place].double(), 0).numpy()
        columns["loss"][place] = float(-(wanted[place].numpy() * logs).sum())
        columns.setdefault("target", [None] * len(known))[place] = wanted[place].tolist()
    return columns


def _measure(
    values: torch.Tensor,
    labels: Sequence[int | None],
    classes: Sequence[str] | None,
    targets: torch.Tensor | None,
    *,
    graded: bool,
) -> dict[str, Any]:
    """Return the columns of numbers that are not classes: their loss is the mean squared error."""
    count = len(values)
    wanted = _measure_targets(values, labels, targets) if graded else None
    loss: list[float | None] = [None] * count
    if wanted is not None:
        errors = ((values.double() - wanted.double()) ** 2).mean(1).numpy()
        loss = _where(torch.isfinite(wanted).all(1).numpy(), errors)
    return {
        "label": list(labels),
        "label_name": _names(classes, list(labels)),
        "loss": loss,
        "target": wanted.numpy() if wanted is not None else [None] * count,
        "output": values.numpy(),
    }


def _measure_targets(
    values: torch.Tensor, labels: Sequence[int | None], targets: torch.Tensor | None
) -> torch.Tensor | None:
    """Return the numbers that an output is to be, as (N, C); raise UnclearOutput where they are of another number."""
    if targets is None and all(label is not None for label in labels):
        targets = torch.tensor(list(labels), dtype=torch.float32)
    wanted = None if targets is None else targets.reshape(len(values), -1).float()
    if wanted is not None and wanted.shape[1] != values.shape[1]:
        raise UnclearOutput(
            f"The model gave {values.shape[1]} numbers for each sample, and its target has {wanted.shape[1]}.",
            hint="Pick the output that belongs to the target with logits=: a key, a position or a function.",
        )
    return wanted


def _multilabel(
    values: torch.Tensor,
    labels: Sequence[int | None],
    classes: Sequence[str] | None,
    targets: torch.Tensor | None,
    scale: str | None,
) -> dict[str, Any]:
    """Return the columns where each class is decided by itself: a sample is correct when every class is.

    Values of an unknown scale have no probabilities, and are not graded. A target that is not from 0 to 1 (-1 for "not known", NaN) is not graded: its sample has neither loss nor verdict.
    """
    count = len(values)
    columns: dict[str, Any] = {
        "label": list(labels),
        "label_name": _names(classes, list(labels)),
        "logits": values.numpy(),
    }
    if scale is None:
        return columns
    is_score = scale == "probabilities"
    scores = values if is_score else torch.sigmoid(values)
    columns |= {"probabilities": scores.numpy(), "output": scores.numpy()}
    if targets is not None and targets.reshape(count, -1).shape[1] == values.shape[1]:
        wanted = targets.reshape(count, -1).float()
        if is_score:
            losses = torch.nn.functional.binary_cross_entropy(
                scores.nan_to_num().clamp(0, 1), wanted.nan_to_num().clamp(0, 1), reduction="none"
            )
        else:
            losses = torch.nn.functional.binary_cross_entropy_with_logits(values, wanted, reduction="none")
        is_target = ((wanted >= 0) & (wanted <= 1)).all(1).numpy()
        is_right = (((scores > 0.5) == (wanted > 0.5)) & torch.isfinite(scores)).all(1)
        columns["loss"] = _where(is_target, losses.mean(1).numpy())
        columns["correct"] = _where(is_target, is_right.numpy())
        columns["target"] = wanted.numpy()
    return columns


def _grade_classes(
    logits: torch.Tensor, labels: Sequence[int | None], classes: Sequence[str] | None, kind: str
) -> dict[str, Any]:
    probabilities = _probabilities(logits, kind)
    width = probabilities.shape[1]
    # Ranked by what the model gave: close logits have equal probabilities.
    is_given = kind in ("logits", "log_probabilities") and logits.shape[1] == width
    ranked = logits.numpy() if is_given else probabilities.numpy()
    grades = _grade_compiled(probabilities.numpy(), ranked, labels, classes)
    if grades is None:
        grades = _grade_with_numpy(probabilities.numpy(), ranked, labels, classes)
    inside, at = grades.pop("inside"), grades.pop("at")
    return grades | {
        "loss": _choose(inside, _loss(logits, probabilities.numpy(), at, kind)),
        "logits": logits.numpy(),
        "probabilities": probabilities.numpy(),
    }


def _grade_compiled(
    probabilities: np.ndarray[Any, Any],
    ranked: np.ndarray[Any, Any],
    labels: Sequence[int | None],
    classes: Sequence[str] | None,
) -> dict[str, Any] | None:
    """Return the columns by the compiled loops; None where they cannot, or where numpy is faster."""
    if loops.native is None or not 0 < probabilities.size <= _MOST_COMPILED:
        return None
    names = None if classes is None else list(classes)
    rows = np.ascontiguousarray(probabilities), np.ascontiguousarray(ranked)
    found = loops.native.grade(*rows, list(labels), names)
    if found is None:
        return None
    *columns, inside, at = found
    return dict(zip(_GRADES, columns, strict=True)) | {
        "inside": inside,
        "at": np.frombuffer(at, dtype=np.int64),
    }


def _grade_with_numpy(
    probabilities: np.ndarray[Any, Any],
    ranked: np.ndarray[Any, Any],
    labels: Sequence[int | None],
    classes: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the columns, whether each label is one of the classes, and its place or 0. values/_grade.h does the same."""
    probabilities = probabilities.astype(np.float64)
    count, width = probabilities.shape
    rows = np.arange(count)
    finite: np.ndarray[Any, Any] = np.asarray(np.isfinite(probabilities).all(axis=1))
    safe = np.where(finite[:, None], probabilities, 0.0)
    ranked = np.where(finite[:, None], ranked, 0.0)
    best = ranked.argmax(axis=1)
    top = safe[rows, best]
    known = np.array([label is not None for label in labels])
    label = np.array([0 if value is None else value for value in labels], dtype=np.int64)
    inside = known & (label >= 0) & (label < width)
    at = np.where(inside, label, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(safe > 0, safe * np.log(safe), 0.0).sum(axis=1)
    rank = _ranks(ranked, at)
    safe[rows, best] = -np.inf
    second = safe.max(axis=1) if width > 1 else np.zeros(count)
    wanted, predicted = _where(known, label), _where(finite, best)
    return {
        "label": wanted,
        "label_name": _names(classes, wanted),
        "predicted": predicted,
        "predicted_name": _names(classes, predicted),
        "confidence": _where(finite, top.astype(np.float32)),
        "correct": _where(known, finite & inside & (best == label)),
        "margin": _where(finite, (top - second).astype(np.float32)),
        "entropy": _where(finite, entropy.astype(np.float32)),
        "label_rank": _where(inside & finite, rank.astype(np.int32)),
        "inside": inside.tolist(),
        "at": at,
    }


def _ranks(values: np.ndarray[Any, Any], at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the rank of the value at one place of each row, from 1 for the greatest; of equal ones the first is first."""
    own = values[np.arange(len(at)), at][:, None]
    is_before = (values == own) & (np.arange(values.shape[1]) < at[:, None])
    return np.asarray(1 + ((values > own) | is_before).sum(axis=1))


def _probabilities(values: torch.Tensor, kind: str) -> torch.Tensor:
    if kind in ("probabilities", "sigmoid"):
        return torch.cat([1 - values, values], dim=1) if values.shape[1] == 1 else values
    return values.exp() if kind == "log_probabilities" else probabilities_of(values)


def _loss(
    logits: torch.Tensor, probabilities: np.ndarray[Any, Any], at: np.ndarray[Any, Any], kind: str
) -> np.ndarray[Any, Any]:
    """Return the cross entropy of each row, from the logits: the logarithm of a rounded probability would lose digits."""
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
    return _choose(condition.tolist(), values)


def _choose(chosen: list[bool], values: np.ndarray[Any, Any]) -> list[Any]:
    """Return the values as a list, with None for those that are not chosen."""
    numbers: list[Any] = values.tolist()
    return numbers if all(chosen) else [one if is_one else None for one, is_one in zip(numbers, chosen, strict=True)]


def _names(classes: Sequence[str] | None, numbers: list[int | None]) -> list[str | None]:
    if classes is None:
        return [None] * len(numbers)
    return [name_class(classes, number) for number in numbers]
