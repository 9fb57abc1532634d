"""A batch that the loop has been given, and whose predictions may still come."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np
import torch

from audit.recorders.batch_tensors import all_tensors, object_references
from audit.recorders.envelope import RecordedBatch, TensorLayout
from audit.recorders.model.activations import activation_table
from audit.recorders.model.batch_tracker import version_of
from audit.recorders.model.row_origins import RowOrigins
from audit.recorders.model.step import ModelStep
from audit.store import wire
from audit.store.stamped_rows import Rows, StampedRows, join_stamped_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRows:
    """Rows that are ready to be written, by table."""

    tables: dict[str, Rows]
    #: Rows of a batch that become tables when they are written.
    stamped: StampedRows | None = None
    #: About how many bytes they hold.
    size: int = 0
    #: Whether `capture_where` decides which of their payloads are kept.
    is_selected: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class UnpredictedBatch(RecordedBatch):
    """A recorded batch in the process that writes: one of a loader, or the items that a dataset made at once."""

    #: Its rows, until somebody looks at them as tables.
    stamped: StampedRows | None
    epoch: int
    visits: list[int]
    classes: list[str] | None
    #: About how many bytes its rows take.
    size: int
    batches: list[int | None]
    positions: list[int | None]
    #: The key of the loader or dataset that it came from.
    origin_key: int
    #: Made by a recorded dataset: which batch its samples became part of is not known yet.
    loose: bool = False
    #: The pass over a loader that it came from; gone when the loop has let go of the iterator.
    origin: weakref.ref[Any] | None = None
    tensors: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    #: The memory of the tensors, so that a view of the newest batch is known though the loop dropped the tensor itself.
    memory: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    #: Places that each model, by id, has predicted already; the first model's predictions are those that are kept.
    predicted: dict[int, set[int]] = field(default_factory=dict)
    #: Whether a recorded model was given any of it.
    is_called: bool = False
    #: Steps with a prediction that is not written yet.
    predictions: list[ModelStep] = field(default_factory=list)
    steps: list[ModelStep] = field(default_factory=list)
    #: The number of the step that was first given each place as its first row.
    step_numbers: dict[int, int] = field(default_factory=dict)
    #: The number of the next prediction of each place after its graded one, and the places that have a graded one.
    calls: dict[int, int] = field(default_factory=dict)
    graded: set[int] = field(default_factory=set)
    #: Places that were mixed from other samples before the batch came to the loop, or of which the user says so.
    mixed_places: set[int] = field(default_factory=set)
    written: bool = False
    #: What the model's output is to be, a row for each sample that did not fail: real numbers, or several for each.
    targets: torch.Tensor | None = None
    #: The targets of each head of a model, by (model, head): a row for each sample that did not fail.
    head_targets: dict[tuple[str, str], Any] = field(default_factory=dict)
    #: The memory of tensors that are one sample each, and its place.
    singles: dict[int, int] = field(default_factory=dict)
    #: Objects of the batch that are not tensors: a graph, a structure of the user's own.
    objects: list[weakref.ref[Any]] = field(default_factory=list)

    #: How often each stage of whole batches was called with it, by path, and the ordinal of the last.
    stage_calls: dict[str, int] = field(default_factory=dict)
    last_ordinal: int | None = None
    #: The proved samples of the tensors that a collate function of the user's made, by where they lie in memory.
    _layouts: dict[tuple[int, tuple[int, ...]], TensorLayout] = field(default_factory=dict)
    _tables: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = list(all_tensors(self.data))
        self.tensors = [weakref.ref(tensor) for tensor in own]
        self.memory = [(tensor.detach(), version_of(tensor)) for tensor in own]
        self.objects = list(object_references(self.data))
        if self.layout is not None:
            found = zip(map(_memory_of, own), self.layout.tensors, strict=True)
            self._layouts = {memory: one for memory, one in found if one is not None and memory is not None}
        # Whether the loop still holds the data is seen by their being alive.
        self.data = None
        if self.mixed is not None:
            self.mixed_places = {
                place for place, pairs in enumerate(self.mixed) if [one for one, _ in pairs] != [place]
            }

    @property
    def tables(self) -> dict[str, Any]:
        """Its rows as tables of the store."""
        if self.stamped is not None:
            self._tables = self.stamped.tables() | self._tables
            self.stamped = None
        return self._tables

    def next_stage_call(self, path: str) -> int:
        """Return the number of the next call of a stage of whole batches: 1, 2, …"""
        self.stage_calls[path] = number = self.stage_calls.get(path, 0) + 1
        return number

    def next_call(self, place: int, *, is_beside: bool) -> int:
        """Return the number of the next prediction of a sample: 0 for the one that is graded, which is not beside it."""
        if place not in self.graded and not is_beside:
            self.graded.add(place)
            return 0
        number = self.calls.get(place, 1)
        self.calls[place] = number + 1
        return number

    def note_parents(self, parents: list[list[int]]) -> None:
        """Take in which samples, by index, each position of the batch was mixed from."""
        for place, position in enumerate(self.positions):
            if position is not None and position < len(parents) and set(parents[position]) - {self.indices[place]}:
                self.mixed_places.add(place)

    @property
    def is_held(self) -> bool:
        """Whether the loop still holds a tensor or an object of it."""
        return any(reference() is not None for reference in (*self.tensors, *self.objects))

    def origins(self, tensor: torch.Tensor) -> RowOrigins | None:
        """Return the samples of one of its own tensors; None for the labels, which say nothing of a model's input."""
        if (memory := _memory_of(tensor)) is None:
            return None
        if (place := self.singles.get(memory[0])) is not None and tensor.numel():
            return RowOrigins(((self, place),), None)
        count = len(self.ok)
        if self.layout is not None:
            return self._prove_origins(tensor, self._layouts.get(memory))
        is_aligned = tensor.dim() > 0 and tensor.shape[0] == count
        if is_aligned and self._is_labels(tensor, self.ok):
            return None
        return RowOrigins(tuple(zip(repeat(self), self.ok)), 0 if is_aligned else None)

    def _prove_origins(self, tensor: torch.Tensor, found: TensorLayout | None) -> RowOrigins | None:
        """Return the samples of a tensor that a collate function of the user's made, as far as they are proved."""
        if found is None or (found.axis == 0 and self._is_labels(tensor, found.places)):
            return None
        rows = tuple((self, place) if place in self.ok else None for place in found.places)
        return RowOrigins(rows, found.axis)

    def _is_labels(self, tensor: torch.Tensor, places: Sequence[int]) -> bool:
        labels = [self.labels[place] for place in places]
        may_be = tensor.dim() == 1 and not tensor.is_floating_point() and None not in labels
        return may_be and tensor.tolist() == labels

    def take_rows(self) -> BatchRows:
        """Return everything that is to be written of it; afterwards it holds no rows."""
        if self.loose and "samples" in self.tables:
            self.tables["samples"] = wire.place_rows(self.tables["samples"], self.batches, self.positions)
        tables, stamped = self._tables, self.stamped
        if self.predictions:
            ordered = sorted(self.predictions, key=lambda step: step.order)
            made = [step.tables_of(self) for step in ordered]
            tables |= made[0] if len(made) == 1 else join_stamped_tables(made)
            self.predictions = []
        leading = [{"steps": step.own_row()} for step in self.steps if not step.follows]
        if leading:
            tables |= leading[0] if len(leading) == 1 else join_stamped_tables(leading)
        activations = [table for step in self.steps if (table := activation_table(step)) is not None]
        if activations:
            tables["activations"] = wire.join_tables(activations)
        for step in self.steps:
            step.written = True
            step.seen.clear()
        # They lead back here, so that nothing of both would be freed before Python's garbage collector comes.
        self.steps = []
        # Tensors that the loop holds on to still lead here.
        self._tables, self.stamped, self.memory, self.written = {}, None, [], True
        return BatchRows(tables=tables, stamped=stamped, size=self.size, is_selected=True)

    def take_heavy_rows(self) -> BatchRows:
        """Return the rows of all tables but `samples`, before the predictions have come."""
        heavy = {name: table for name, table in self.tables.items() if name != "samples"}
        # A copy: the rows that a worker has packed lie in one block of memory, which would wait for the predictions, too.
        self._tables = {"samples": wire.copy_rows(self.tables["samples"])}
        size, self.size = self.size, 0
        return BatchRows(tables=heavy, size=size, is_selected=True)


def _memory_of(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]] | None:
    """Return where a tensor lies; None for one without memory of its own, as sparse and nested tensors are."""
    try:
        return tensor.data_ptr(), tuple(tensor.shape)
    except RuntimeError:
        return None


def targets_of(rows: list[tuple[UnpredictedBatch, int]]) -> torch.Tensor | None:
    """Return the targets of these samples; None unless all have one, of the same shape."""
    found: list[torch.Tensor] = []
    for batch, place in rows:
        own = batch.item_targets[place] if batch.item_targets and batch.targets is None else None
        if isinstance(own, np.ndarray):
            found.append(torch.from_numpy(own))
        elif batch.targets is not None and place in batch.ok:
            found.append(batch.targets[batch.ok.index(place)])
        else:
            return None
    return torch.stack(found) if found and len({one.shape for one in found}) == 1 else None


def item_targets_of(rows: list[tuple[UnpredictedBatch, int]]) -> list[Any]:
    """Return the target of each sample: that of its item, or its row of the batch's targets; None where there is none."""
    found: list[Any] = []
    for batch, place in rows:
        target = batch.item_targets[place] if batch.item_targets else None
        if target is None and batch.targets is not None and place in batch.ok:
            target = batch.targets[batch.ok.index(place)].numpy()
        if isinstance(target, np.ndarray) and target.ndim == 3 and target.shape[0] == 1 and target.dtype.kind in "iub":
            target = target[0]  # a mask (1, H, W)
        found.append(target)
    return found
