"""The meaning of a model's outputs: logits, probabilities, measured values or a vector.

The user says it, or it is evident from the model and its first output. What is neither is graded as logits, and the
user gets a message that explains how to declare it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from audit.errors import UsageError
from audit.records import OUTPUT_TASKS

#: How far the sum of probabilities may be from 1, in the precision that models compute in.
_NEAR = 2e-3
#: The same for fewer rows than this, where logits may come as near by chance.
_NEAR_OF_FEW, _FEW = 1e-5, 4
#: What is said of targets that the output cannot be graded against.
_MISFIT = (
    "{targets}, and the model gives {width} for each sample: what they mean is not evident. They are recorded as {kind} and "
    "not graded. Say what they are with output (--output): multilabel, regression, sigmoid, logits or embedding."
)
#: What is said of more numbers than classes.
_WIDE = (
    "it gives {width} numbers for each sample, and the labels are of {count} classes: number 0 is taken for the logit of class 0, and "
    "so on. Say what they are with output (--output): logits or embedding."
)
#: What is said of one number beside labels that it cannot stand for.
_ONE_NUMBER = (
    "the labels are of {count}, and the model gives one number for each sample: what it means is not evident. It is recorded "
    "and not graded. Say what it is with output (--output): regression, sigmoid, logits or embedding."
)
#: The most numbers of one sample that are stored as its prediction.
MOST_NUMBERS = 4096


@dataclass(frozen=True, slots=True)
class OutputMeaning:
    """The meaning of a model's output, and the reason for it."""

    kind: str
    evidence: str
    #: The text for the user if the meaning is not certain.
    doubt: str | None = None

    @property
    def task(self) -> str:
        """Return the task that such an output solves."""
        return OUTPUT_TASKS[self.kind]


def check_kind(kind: str | None) -> str | None:
    """Return the kind as it was given; an error that lists all kinds where it is none."""
    if kind is not None and kind not in OUTPUT_TASKS:
        raise UsageError(f"output cannot be {kind!r}.", hint=f"Use one of: {', '.join(OUTPUT_TASKS)}.")
    return kind


def find_meaning(
    values: torch.Tensor,
    *,
    declared: str | None = None,
    module: nn.Module | None = None,
    labels: list[int | None] | None = None,
    targets: torch.Tensor | None = None,
    classes: Sequence[str] | None = None,
) -> OutputMeaning:
    """Return what values (N, C) mean, from what was declared or from what is evident in the first output.

    `classes` are the names of the labels' classes, where they are known.
    """
    values = values.detach().float().cpu()
    if (
        declared == "sigmoid"
        and (found := _from_targets(values, [], targets)) is not None
        and found.kind == "multilabel"
    ):
        return replace(found, evidence=f"It was declared as sigmoid. {found.evidence}")
    if declared is not None:
        return OutputMeaning(declared, "It was declared.")
    found = _from_one_number(values, module, labels or [], classes)
    found = found or _from_targets(values, labels or [], targets) or _from_values(values, module)
    return replace(found, doubt=found.doubt or doubt_targets(found, values.shape[1], labels or [], targets))


def doubt_width(meaning: OutputMeaning, width: int, classes: Sequence[str] | None) -> str | None:
    """Return a warning if an output that was taken for logits has more numbers than the labels have classes."""
    is_wide = classes is not None and width > max(len(classes), 2)
    if classes is None or not is_wide or meaning.kind != "logits":
        return None
    return _WIDE.format(width=width, count=len(classes))


def doubt_targets(
    meaning: OutputMeaning, width: int, labels: list[int | None], targets: torch.Tensor | None
) -> str | None:
    """Return a warning if an output that was taken for a classifier's has targets of another kind."""
    is_graded = any(label is not None for label in labels)
    if meaning.task != "classification" or is_graded or targets is None or not targets.numel():
        return None
    wide = targets.reshape(len(targets), -1).float()
    is_binary = bool(((wide == 0) | (wide == 1)).all())
    sums_to_one = bool((wide >= 0).all()) and bool(((wide.sum(1) - 1).abs() < _NEAR).all())
    if wide.shape[1] == width and (is_binary if width == 1 else sums_to_one):
        return None
    if wide.shape[1] == width and is_binary:
        found = "the targets are rows of 0 and 1, of which some have no 1 or several"
    else:
        what = "a real number" if targets.is_floating_point() else "a whole number"
        count = wide.shape[1]
        found = f"each target is {what}" if count == 1 else f"each target is {count} numbers"
    return _MISFIT.format(targets=found, width=f"{width} numbers" if width > 1 else "one number", kind=meaning.kind)


def _from_one_number(
    values: torch.Tensor, module: nn.Module | None, labels: list[int | None], classes: Sequence[str] | None
) -> OutputMeaning | None:
    """Return the meaning of one number beside labels of several classes, which it cannot tell apart: a critic's, say."""
    known = [label for label in labels if label is not None]
    if values.shape[1] != 1 or not known:
        return None
    is_score = isinstance(last_module(module), nn.Sigmoid) and lies_inside(values)
    is_classes = classes is not None and len(classes) > 2
    others = sum(label > 1 for label in known)
    may_be_measured = others > len(known) / 2 and not is_score
    if not is_classes and (not others or may_be_measured):
        return None
    count = f"{len(classes)} classes" if classes is not None and is_classes else "more than two classes"
    return OutputMeaning("embedding", "One number cannot stand for several classes.", _ONE_NUMBER.format(count=count))


def _from_targets(values: torch.Tensor, labels: list[int | None], targets: torch.Tensor | None) -> OutputMeaning | None:
    width = values.shape[1]
    if targets is not None:
        wide = targets.reshape(len(targets), -1).float()
        is_binary = bool(((wide == 0) | (wide == 1)).all())
        if wide.shape[1] == width and width > 1 and is_binary and bool((wide.sum(1) != 1).any()):
            return OutputMeaning("multilabel", "The targets are rows of 0 and 1, as wide as the output.")
        if wide.shape[1] == width and targets.is_floating_point() and not is_binary:
            soft = width > 1 and bool((wide >= 0).all()) and bool(((wide.sum(1) - 1).abs() < _NEAR).all())
            if not soft:
                return OutputMeaning("regression", "The targets are real numbers, as many as the outputs.")
    known = [label for label in labels if label is not None]
    if width == 1 and known and sum(label not in (0, 1) for label in known) > len(known) / 2:
        return OutputMeaning("regression", "The model has one output, and most labels are neither 0 nor 1.")
    return None


def _from_values(values: torch.Tensor, module: nn.Module | None) -> OutputMeaning:
    last = last_module(module)
    inside = lies_inside(values)
    if inside and values.shape[1] > 1 and sums_to_one(values):
        said = "The last module is a Softmax, and each" if isinstance(last, nn.Softmax) else "Each"
        return OutputMeaning("probabilities", f"{said} row lies between 0 and 1 and adds up to 1.")
    if inside and isinstance(last, nn.Sigmoid):
        return OutputMeaning("sigmoid", "The last module is a Sigmoid, and each value lies between 0 and 1.")
    if isinstance(last, nn.LogSoftmax) and bool((values <= 0).all()):
        return OutputMeaning("log_probabilities", "The last module is a LogSoftmax, and no value is above 0.")
    return OutputMeaning("logits", "Nothing shows that the values are probabilities.")


def lies_inside(values: torch.Tensor) -> bool:
    """Return whether every value lies between 0 and 1."""
    if not values.numel():
        return False
    least, greatest = torch.aminmax(values)  # both are NaN if any is
    return bool(least >= 0) and bool(greatest <= 1)


def sums_to_one(values: torch.Tensor) -> bool:
    """Return whether the values (N, C, …) of all classes add up to 1 everywhere; few have to do so more exactly."""
    sums = values.float().sum(1)
    return bool(((sums - 1).abs() < (_NEAR if sums.numel() >= _FEW else _NEAR_OF_FEW)).all())


def last_module(module: nn.Module | None) -> nn.Module | None:
    """Return the module that was made last of those without children."""
    leaves = [one for one in module.modules() if not list(one.children())] if module is not None else []
    return leaves[-1] if leaves else None
