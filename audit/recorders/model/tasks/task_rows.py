"""The rows of one call whose predictions are boxes, masks or tokens, and what is known of its samples.

A row here has the number of its sample among those of the call; who writes it adds the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from audit.metrics.source_space import SourceSpace

#: Targets with this number are left out (torch's cross entropy does so).
IGNORED_TARGET = -100


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
