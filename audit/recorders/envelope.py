"""A batch on its way from the process that made it, with the rows of its samples beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from audit.recorders.model.mixing import Weights
from audit.records import Stage


@dataclass(slots=True)
class Envelope:
    """What the user's loader made, and what was recorded meanwhile; lists are by place in the batch."""

    data: Any
    #: None for an iterable dataset in a recorded loader, whose items are numbered as they arrive.
    indices: list[int] | None
    count: int
    #: The rows, packed (see store.batch): one tensor crosses processes through shared memory.
    records: torch.Tensor
    digests: list[str | None]
    labels: list[int | None]
    payload_bytes: int
    problems: list[str]
    #: What the dataset or the collate function raised, as the loader would have carried it out of the process.
    error: Any = None
    #: What each place was mixed from, where the collate function mixed.
    mixed: Weights | None = None
    #: All stages by their ordinals here, where some were not known before the visits.
    stages: list[tuple[int, Stage]] = field(default_factory=list)
    #: Of a recorded dataset: the epoch when the items were made.
    epoch: int | None = None
    #: How the first item without a label looked.
    unlabelled: str | None = None
    #: The class of a dataset that made samples where the recording could not see it.
    unseen: str | None = None
    #: Changes of the values that no stage explains, each told once by each process.
    unrecorded: list[str] = field(default_factory=list)

    def pin_memory(self, device: Any = None) -> Envelope:
        """What the loader's pinning thread calls: the user's part is pinned as it would have been."""
        from torch.utils.data._utils.pin_memory import pin_memory

        given = () if device is None else (device,)
        self.data = pin_memory(self.data, *given)  # type: ignore[no-untyped-call]
        return self
