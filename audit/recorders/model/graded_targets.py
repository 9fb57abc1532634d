"""What a model's output is graded against: the labels and targets of its samples, or those of one of its heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from audit.errors import UsageError
from audit.metrics.target_boxes import read_target_boxes
from audit.recorders.items.targets import TargetPicker, pick_target
from audit.recorders.model.output_reader import OutputReader
from audit.recorders.model.step import ModelStep
from audit.recorders.model.unpredicted_batch import item_targets_of, targets_of


@dataclass(frozen=True, slots=True)
class GradedTargets:
    """The targets of the samples of a call; lists are by sample."""

    labels: list[int | None]
    #: What the output is to be, where it is more than a class number.
    values: torch.Tensor | None
    items: list[Any]
    classes: Sequence[str] | None
    #: The class numbers that the batch has for the samples, where a collate function made it and that is known.
    batch_labels: Sequence[int | None] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no sample has a target."""
        return self.values is None and all(one is None for one in (*self.labels, *self.items))


@dataclass(frozen=True, slots=True)
class GradedHead:
    """One of several graded outputs of a model."""

    name: str
    reader: OutputReader
    target: TargetPicker | None = None

    def read_target(self, data: Any, count: int) -> Any:
        """Return this head's target of each of `count` samples in a batch, as it is now; None if there is none."""
        found = pick_target(data, self.name if self.target is None else self.target)
        if isinstance(found, torch.Tensor):
            return found.detach().to("cpu", copy=True) if found.dim() and found.shape[0] == count else None
        return list(found) if isinstance(found, (list, tuple)) and len(found) == count else None


def make_heads(
    readers: Mapping[str, OutputReader], targets: Mapping[Any, TargetPicker] | None
) -> tuple[GradedHead, ...]:
    """Return the heads of a model, in the order in which they were declared."""
    wanted = {str(name): picker for name, picker in (targets or {}).items()}
    if unknown := wanted.keys() - readers.keys():
        raise UsageError(
            f"target names {', '.join(sorted(unknown))}, but output does not.",
            hint=f"Use the names of output: {', '.join(readers)}.",
        )
    for name, picker in wanted.items():
        if isinstance(picker, bool) or not (isinstance(picker, (str, int)) or callable(picker)):
            raise UsageError(
                f"The target of {name} cannot be {picker!r}.", hint="Give a key, a position or a function of the batch."
            )
    return tuple(GradedHead(name, reader, wanted.get(name)) for name, reader in readers.items())


def sample_targets(step: ModelStep) -> GradedTargets:
    """Return the labels and targets that the samples themselves have."""
    labels = [batch.labels[place] for batch, place in step.rows]
    in_batch = [batch.batch_labels[place] if batch.batch_labels else None for batch, place in step.rows]
    return GradedTargets(labels, targets_of(step.rows), item_targets_of(step.rows), step.rows[0][0].classes, in_batch)


def head_targets(step: ModelStep, head: GradedHead, model: str) -> GradedTargets:
    """Return what one head is graded against: the target that the batch has for it."""
    found = [_own_target(batch.head_targets.get((model, head.name)), batch, place) for batch, place in step.rows]
    return grade_against(found, [batch.labels[place] for batch, place in step.rows], step.rows[0][0].classes)


def grade_against(found: list[Any], own: list[int | None], classes: Sequence[str] | None) -> GradedTargets:
    """Return what one head is graded against. `own` are the labels of the samples themselves, `classes` their names."""
    labels = [_class_number(target) for target in found]
    tensors = [target for target in found if isinstance(target, torch.Tensor)]
    fits = len(tensors) == len(found) > 0 and len({one.shape for one in tensors}) == 1
    # The names of the classes are those of the samples' labels. Another head has classes of its own.
    is_label = labels == own and None not in labels
    return GradedTargets(
        labels,
        torch.stack(tensors) if fits and None in labels else None,
        [_item_target(target) for target in found],
        classes if is_label else None,
    )


def _own_target(targets: Any, batch: Any, place: int) -> Any:
    return targets[batch.ok.index(place)] if targets is not None and place in batch.ok else None


def _class_number(target: Any) -> int | None:
    if isinstance(target, torch.Tensor) and target.dim() == 0 and not target.is_floating_point():
        return int(target)
    return int(target) if isinstance(target, int) else None


def _item_target(target: Any) -> Any:
    if isinstance(target, torch.Tensor):
        return np.asarray(target)
    try:
        return read_target_boxes(target)
    except ValueError:
        return None
