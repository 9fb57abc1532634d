"""A recorded batch on its way from the process that made it to the one that writes."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from audit.recorders.lent_memory import LentMemory, LentRows
from audit.records import Columns, Stage
from audit.store import wire
from audit.store.stamped_rows import StampedRows

PackedRows = LentRows | bytes | bytearray
#: About what one row takes as Python objects, without payloads.
_ROW_BYTES = 400
#: Fewer bytes travel through the loader's pipe: handing over a block of shared memory takes two processes 0.4 ms, however small it is.
_LEAST_SHARED = 128 * 2**10
#: For each place of a batch, the places it was mixed from with their weights.
Weights = list[list[tuple[int, float]]]


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Which samples of a batch a tensor is made of."""

    #: The places of the samples in the order of the tensor's rows.
    places: tuple[int, ...]
    #: The axis that the rows lie along; None for a tensor that is one sample, or several one behind the other.
    axis: int | None


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Which samples the parts of a collated batch are made of."""

    #: Of each tensor, in the order of `all_tensors`; None where nothing proves it.
    tensors: list[TensorLayout | None]
    #: Whether objects that are not tensors hold the samples in their order.
    is_object_in_order: bool
    #: The samples of the model's input, row by row; None where nothing proves them.
    input_places: tuple[int, ...] | None
    #: The collate function whose rows could not be proved.
    unplaced: str | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class RecordedBatch:
    """What a loader gives, and what was recorded meanwhile; lists are by place in the batch.

    The only carrier of a recorded batch: `audit run`, loaders and datasets of a user's own loop all send it, and while
    it waits for predictions it is an `UnpredictedBatch`.
    """

    #: The user's batch, or the inputs for the model of `audit run`: one stacked tensor, or a list where shapes differ.
    data: Any = None
    #: Empty for an iterable dataset in a recorded loader, whose items are numbered as they arrive.
    indices: list[int]
    count: int
    #: The rows, packed (see store/wire.py): in shared memory, or bytes that travel through a pipe.
    records: PackedRows = b""
    #: The rows as they were gathered, where they never leave the process; then nothing is packed.
    gathered: Mapping[str, Columns] | None = None
    #: Places whose sample did not fail.
    ok: list[int] = field(default_factory=list)
    digests: list[str | None] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)
    #: The class numbers that the collated batch has for the samples, where that is known; else empty.
    batch_labels: list[int | None] = field(default_factory=list)
    #: Boxes and other targets that are more than a class number (recorders/items/targets.py); None where an item has none.
    item_targets: list[Any] = field(default_factory=list)
    #: Of `audit run` with several graded outputs: the target of each, by its name.
    item_head_targets: list[dict[str, Any]] = field(default_factory=list)
    #: The kind of value that the last stage of the last sample gave.
    last_kind: str | None = None
    payload_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    #: Of `audit run`: by place, why the model could not take a sample.
    failed_at_model: dict[int, str] = field(default_factory=dict)
    #: A sentence for each sample that failed.
    failures: list[str] = field(default_factory=list)
    #: What the dataset or the collate function raised, as the loader would have carried it out of the process.
    error: Any = None
    #: Which samples the batch's tensors are made of; None where torch itself collated it: row n is sample n.
    layout: BatchLayout | None = None
    #: What each place was mixed from, where the collate function mixed.
    mixed: Weights | None = None
    #: All stages by their ordinals here, where some were not known before the visits.
    stages: list[tuple[int, Stage]] = field(default_factory=list)
    #: Names of stages that are the user's own though they are called like stages whose geometry is known.
    own_stages: list[str] = field(default_factory=list)
    #: Of a recorded dataset: the epoch when the items were made.
    made_in_epoch: int | None = None
    #: How the first item without a label looked.
    unlabelled: str | None = None
    #: The class of a dataset that made samples where the recording could not see it.
    unseen: str | None = None
    #: Changes of the values that no stage explains, each sent once by each process.
    unrecorded: list[str] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """How many samples failed."""
        return self.count - len(self.ok)

    def stamp_rows(self, stamp: wire.BatchStamp) -> StampedRows:
        """Return the rows with what only the main process knows of them."""
        packed = np.asarray(self.records) if isinstance(self.records, LentRows) else self.records
        return StampedRows(stamp, self.gathered, packed)

    def unstamped_rows(self) -> Mapping[str, Any]:
        """Return the rows as Arrow tables, without what only the main process knows."""
        return self.stamp_rows(wire.BatchStamp("", 0, None, [])).unstamped_tables()

    @property
    def row_bytes(self) -> int:
        """About how much memory the rows take."""
        if self.gathered is None:
            return len(self.records)
        return self.payload_bytes + _ROW_BYTES * sum(rows.rows for rows in self.gathered.values())

    def of_ok(self, by_place: list[Any]) -> list[Any]:
        """Return the items of a list that belong to samples that did not fail."""
        return [by_place[place] for place in self.ok]

    def facts(self) -> dict[str, Any]:
        """Return what is known of the batch, without its data and its packed rows."""
        return dict(zip(_FACTS, _facts_of(self), strict=True))

    def pin_memory(self, device: Any = None) -> RecordedBatch:
        """Pin the user's part as it would have been pinned: the loader's pinning thread calls this."""
        from torch.utils.data._utils.pin_memory import pin_memory

        given = () if device is None else (device,)
        self.data = pin_memory(self.data, *given)  # type: ignore[no-untyped-call]
        return self


_FACTS = [each.name for each in fields(RecordedBatch) if each.name not in ("data", "records", "gathered")]
_facts_of = operator.attrgetter(*_FACTS)


def pack_rows(
    tables: Mapping[str, Columns], memory: LentMemory, *, by_loader: bool = True
) -> tuple[PackedRows, Mapping[str, Columns] | None]:
    """Return the rows packed into bytes, or as they are where they never leave the process: one of both.

    `by_loader` says that a loader hands them to the main process. Then a worker packs them straight into memory that both
    share: the loader would copy any other tensor there, and payloads are large, so that each copy of them would cost as
    much as hashing them. Few rows, and all while shared memory is full, travel through the loader's pipe.
    """
    if not tables["samples"].rows:
        return b"", None
    is_worker = get_worker_info() is not None
    if by_loader and not is_worker:
        return b"", tables
    made: list[PackedRows] = []

    def allocate(size: int) -> Any:
        lent = memory.lend(size) if by_loader and size >= _LEAST_SHARED else None
        made.append(bytearray(size) if lent is None else lent)
        return made[-1] if lent is None else lent.view

    wire.pack(tables, allocate)
    return made[0], None
