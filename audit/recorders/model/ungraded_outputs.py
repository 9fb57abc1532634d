"""Sentences on predictions that could not be made or graded as their targets ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from audit.metrics.boxes import Boxes
from audit.models.score_scale import UNCLEAR
from audit.recorders.model.graded_targets import GradedTargets
from audit.recorders.model.predictions import IGNORED_LABEL

#: Kinds of output from which one class is predicted.
_CLASS_OUTPUTS = ("logits", "probabilities", "log_probabilities", "sigmoid")
#: What is said of a target that a graded output of this kind cannot be compared with.
_MISFITS = {
    "multilabel": "A target is not {width} numbers from 0 to 1: such samples are recorded and not graded.",
    "regression": "A target is not {width} finite numbers: such samples are recorded and not graded.",
}
_NO_CLASS = (
    "A target is neither a class number nor a share for each class: such samples are recorded and not graded. Say what the "
    "output is with output (--output), or where the label is with label=."
)
_EMPTY = "A target is empty: such samples are recorded and not graded."


def describe_problems(columns: Mapping[str, Any], wanted: GradedTargets, kind: str, *, is_doubted: bool) -> list[str]:
    """Return what is wrong with an output of numbers and its targets; `is_doubted`: a doubt about their meaning was reported.

    `columns` are the columns of `predictions` that were made of the output.
    """
    values = columns["output"] if kind in ("regression", "embedding") else columns["logits"]
    targets = _describe_targets(columns, wanted, kind, values.shape[1], is_doubted=is_doubted)
    return [sentence for sentence in (_describe_values(columns, kind), targets) if sentence is not None]


def describe_label_problem(labels: Sequence[int | None], width: int, kind: str) -> str | None:
    """Return a sentence about labels that an output of this width has no class for; None if there are none."""
    classes = max(width, 2)
    known = [label for label in labels if label is not None and label != IGNORED_LABEL]
    if kind not in _CLASS_OUTPUTS or all(0 <= label < classes for label in known):
        return None
    return f"A label is not one of its {classes} classes: such samples have no loss, and count as wrong."


def describe_other_labels(columns: Mapping[str, Any], wanted: GradedTargets, kind: str) -> str | None:
    """Return a sentence about samples that are graded against another class than the batch has for them; None if there are none."""
    if kind not in _CLASS_OUTPUTS or not wanted.batch_labels:
        return None
    classes = max(columns["logits"].shape[1], 2)
    for graded, number in zip(columns["label"], wanted.batch_labels, strict=True):
        # A number that is not one of the classes stands for no label.
        if graded is not None and number is not None and 0 <= number < classes and number != graded:
            return (
                f"It is graded against the labels of the items, and a batch has other numbers, such as {number} for {graded}. If they are meant, "
                "pass label= to run.loader, a function of the item that returns the number in the batch."
            )
    return None


def _describe_values(columns: Mapping[str, Any], kind: str) -> str | None:
    """Return a sentence about NaN and infinity. A logit of -inf beside others is a class that is ruled out."""
    if kind in _CLASS_OUTPUTS and any(number is None for number in columns["predicted"]):
        return "It has NaN or infinite numbers: such samples have no predicted class, and count as wrong where they have a label."
    if kind == "multilabel" and "probabilities" not in columns:
        return UNCLEAR.format(result="they are recorded and not graded")
    if kind == "multilabel" and not np.isfinite(columns["logits"]).all():
        return "It has NaN: such scores are recorded, and count as wrong where they have a target."
    if kind in ("regression", "embedding") and not np.isfinite(columns["output"]).all():
        return "It has NaN or infinite numbers: they are recorded as they are."
    return None


def _describe_targets(
    columns: Mapping[str, Any], wanted: GradedTargets, kind: str, width: int, *, is_doubted: bool
) -> str | None:
    """Return a sentence about samples that have a target and no loss."""
    if kind == "embedding" or (kind == "multilabel" and "probabilities" not in columns):
        return None
    losses = columns.get("loss") or [None] * len(wanted.items)
    open_targets: list[Any] = [
        item if item is not None else label
        for item, label, loss in zip(wanted.items, wanted.labels, losses, strict=True)
        if loss is None and (item is not None or (label is not None and kind not in _CLASS_OUTPUTS))
    ]
    if not open_targets:
        return None
    if any(not len(target) if isinstance(target, Boxes) else np.size(target) == 0 for target in open_targets):
        return _EMPTY
    if kind in _CLASS_OUTPUTS:
        return None if is_doubted else _NO_CLASS
    return _MISFITS[kind].format(width=width)
