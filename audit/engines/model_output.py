"""What a model returned for one batch: outputs that were read and are graded, and those that could not be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from audit.errors import UnclearOutput
from audit.recorders.model.graded_targets import GradedTargets
from audit.recorders.model.output_reader import OutputReader
from audit.recorders.model.predictions import IGNORED_LABEL
from audit.recorders.model.tasks.task_rows import TaskRows
from audit.recorders.model.ungraded_outputs import describe_label_problem, describe_problems
from audit.texts import enumerate_some

#: So many samples are named in one sentence.
_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """One graded output for the samples of a batch that did not fail: numbers (N, C), or rows of another task."""

    reader: OutputReader
    #: What it is graded against.
    wanted: GradedTargets
    values: torch.Tensor | None = None
    #: The columns of `predictions` that follow from the values.
    columns: dict[str, Any] = field(default_factory=dict)
    task: TaskRows | None = None
    #: Its name, where several outputs are graded, and its place among them.
    head: str | None = None
    call: int = 0

    @property
    def kind(self) -> str:
        """What its numbers mean."""
        return self.reader.meaning.kind if self.reader.meaning is not None else "logits"

    @property
    def problems(self) -> list[str]:
        """Sentences on what could not be graded."""
        found = list(self.task.problems) if self.task is not None else []
        if self.values is not None:
            is_doubted = self.reader.meaning is not None and self.reader.meaning.doubt is not None
            found += describe_problems(self.columns, self.wanted, self.kind, is_doubted=is_doubted)
        if self.head is None:
            return found  # labels that no output stands for are counted
        if self.width is not None and (problem := describe_label_problem(self.wanted.labels, self.width, self.kind)):
            found.append(problem)
        if self.wanted.is_empty and not self.reader.is_embedding:
            found.append("no item has a target for it: it is recorded and not graded. Say where it is with --target.")
        return [f"{self.head}: {problem}" for problem in found]

    @property
    def labels_outside(self) -> int:
        """How many labels no value of the output stands for."""
        meaning = self.reader.meaning
        if self.width is None or (meaning is not None and meaning.task != "classification"):
            return 0
        known = [label for label in self.wanted.labels if label is not None and label != IGNORED_LABEL]
        return sum(not 0 <= label < max(self.width, 2) for label in known)

    @property
    def width(self) -> int | None:
        """How many numbers it has for each sample; None for other tasks."""
        return int(self.values.shape[1]) if self.values is not None else None

    @property
    def values_inside(self) -> int | None:
        """How many values may be probabilities though they are taken for logits; None where they are not in doubt."""
        return self.values.numel() if self.values is not None and self.reader.scale.is_open else None


@dataclass(frozen=True, slots=True)
class UnreadOutput:
    """An output that could not be read: the samples have no prediction of it."""

    head: str | None
    indices: list[int]
    error: UnclearOutput
    #: Nothing was declared that is missing, and all outputs are stored under their ports.
    is_stored: bool = False


@dataclass(slots=True)
class BatchOutput:
    """All that one model returned for one batch."""

    #: The outputs that were read.
    graded: list[ModelOutput] = field(default_factory=list)
    #: All outputs of a model that has several, under their ports.
    ports: TaskRows = field(default_factory=TaskRows)
    unread: list[UnreadOutput] = field(default_factory=list)

    @property
    def main_output(self) -> ModelOutput | None:
        """The output that counts for the run, if it was read."""
        return next((one for one in self.graded if one.call == 0), None)

    @property
    def payload_bytes(self) -> int:
        """How many bytes of values its rows keep."""
        tasks = [one.task for one in self.graded if one.task is not None]
        return sum(task.payload_bytes for task in (*tasks, self.ports))

    @property
    def problems(self) -> list[str]:
        """Sentences on what could not be graded or stored."""
        return [*(problem for one in self.graded for problem in one.problems), *self.ports.problems]


def describe_unread(head: str | None, indices: Sequence[int], sentence: str) -> str:
    """Return a sentence on samples that have no prediction, and why."""
    named = enumerate_some(indices, _MOST_NAMED)
    count = "1 sample has" if len(indices) == 1 else f"{len(indices):,} samples have"
    return f"{count} no prediction{f' of {head}' if head is not None else ''} (index {named}): {sentence}"
