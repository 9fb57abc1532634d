"""Batches that the loop has been given, and whose predictions may still come.

Finds out which samples a model was called with, by evidence alone: the tensors of the batch themselves, what the loop made
of them (see batch_tracker.py), a view of their memory, or the content of each row. A batch of the same length is not evidence.
Without any, nobody gets the prediction: none is better than another sample's.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any

import torch

from audit import values
from audit.recorders.model.batch_tracker import BatchTracker, Content, version_of
from audit.recorders.model.row_origins import RowOrigins
from audit.recorders.model.step import ModelStep, Place

#: How many batches that nobody holds any more may wait: a loop may have moved them to a device, and fetched ahead.
_RECENT = 64
#: How many bytes of rows may wait for predictions; above it all but `samples` is written at once.
_MOST_BYTES = 128 * 2**20
_MOST_SAMPLES = 1 << 16


@dataclass(slots=True, eq=False)
class UnpredictedBatch:
    """One batch of a loader, or the items that a dataset made at once; lists are by place."""

    tables: dict[str, Any]
    epoch: int
    indices: list[int]
    visits: list[int]
    labels: list[int | None]
    digests: list[str | None]
    #: Places whose sample did not fail.
    ok: list[int]
    classes: list[str] | None
    size: int
    batches: list[int | None]
    positions: list[int | None]
    #: Made by a recorded dataset: which batch its samples became part of is not known yet.
    loose: bool = False
    data: InitVar[Any] = None
    #: The pass over a loader that it came from; gone when the loop has let go of the iterator.
    origin: weakref.ref[Any] | None = None
    tensors: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    #: The memory of the tensors, so that a view of the newest batch is known though the loop dropped the tensor itself.
    memory: list[tuple[torch.Tensor, int]] = field(default_factory=list)
    #: Places that each model, by id, has predicted already; the first model's predictions are those that are kept.
    predicted: dict[int, set[int]] = field(default_factory=dict)
    #: Steps with a prediction that is not written yet.
    predictions: list[ModelStep] = field(default_factory=list)
    steps: list[ModelStep] = field(default_factory=list)
    #: How many predictions each place has.
    calls: dict[int, int] = field(default_factory=dict)
    written: bool = False
    #: What the model's output is to be, a row for each sample that did not fail: real numbers, or several for each.
    targets: torch.Tensor | None = None
    #: Objects of the batch that are no tensors: a graph, a structure of the user's own.
    objects: list[weakref.ref[Any]] = field(default_factory=list)

    def __post_init__(self, data: Any) -> None:
        own = list(all_tensors(data))
        self.tensors = [weakref.ref(tensor) for tensor in own]
        self.memory = [(tensor.detach(), version_of(tensor)) for tensor in own]
        self.objects = list(_references(data))

    def next_call(self, place: int) -> int:
        """The number of the next prediction of a sample."""
        number = self.calls.get(place, 0)
        self.calls[place] = number + 1
        return number

    @property
    def held(self) -> bool:
        """Whether the loop still holds a tensor of it."""
        return any(reference() is not None for reference in (*self.tensors, *self.objects))

    def origins(self, tensor: torch.Tensor) -> RowOrigins | None:
        """The samples of one of its own tensors; None for the labels, which say nothing of a model's input."""
        count = len(self.ok)
        is_aligned = tensor.dim() > 0 and tensor.shape[0] == count
        labels = [self.labels[place] for place in self.ok]
        may_be_labels = tensor.dim() == 1 and is_aligned and not tensor.is_floating_point() and None not in labels
        if may_be_labels and tensor.tolist() == labels:
            return None
        return RowOrigins(tuple((self, place) for place in self.ok), 0 if is_aligned else None)


@dataclass(frozen=True, slots=True)
class BatchMatch:
    """The rows of a model's input, each with its sample; None for a row that is not a recorded sample."""

    rows: list[Place | None]
    #: What proves it: `batch`, `operations`, `view`, `content` or `object`.
    evidence: str
    digests: list[str | None] | None = None
    operations: tuple[str, ...] = ()


def targets_of(rows: list[Place]) -> torch.Tensor | None:
    """The targets of these samples; None unless all have one, of the same shape."""
    found: list[torch.Tensor] = []
    for pending, place in rows:
        if pending.targets is None or place not in pending.ok:
            return None
        found.append(pending.targets[pending.ok.index(place)])
    return torch.stack(found) if found and len({one.shape for one in found}) == 1 else None


class Unmatched(Exception):
    """Nothing proves which samples a model was called with; says why."""


class BatchMatcher:
    """All that waits. `write` is called once for each, `spill` before that with what need not wait."""

    def __init__(self, write: Callable[[UnpredictedBatch], None], spill: Callable[[UnpredictedBatch], None]) -> None:
        self._write = write
        self._spill = spill
        self.tracker = BatchTracker()
        self._batches: deque[UnpredictedBatch] = deque()
        self._loose: dict[int, UnpredictedBatch] = {}
        self._by_digest: dict[str, list[Place]] = {}
        self._bytes = 0
        self._samples = 0

    @property
    def newest(self) -> UnpredictedBatch | None:
        """The batch that came last."""
        return self._batches[-1] if self._batches else None

    def add(self, pending: UnpredictedBatch) -> None:
        """A batch that is about to be given to the loop."""
        if self._batches:
            # The loop itself lets go of the batch before this one: whoever still has its tensors is found by them.
            self._batches[-1].memory = []
        self._batches.append(pending)
        self._enter(pending)
        self._settle([pending])

    def add_loose(self, pending: UnpredictedBatch) -> None:
        """Items of a recorded dataset."""
        self._loose[id(pending)] = pending
        self._samples += len(pending.indices)
        self._enter(pending)
        while self._samples > _MOST_SAMPLES and len(self._loose) > 1:
            self._write(self._left(self._tight(next(iter(self._loose.values())))))

    def _enter(self, pending: UnpredictedBatch) -> None:
        for place in pending.ok:
            digest = pending.digests[place]
            if digest is not None:
                self._by_digest.setdefault(digest, []).append((pending, place))
        self._bytes += pending.size
        if self._bytes > _MOST_BYTES:
            for heavy in [*self._loose.values(), *self._batches]:
                if heavy.size and heavy is not pending and self._bytes > _MOST_BYTES:
                    self._bytes -= heavy.size
                    heavy.size = 0
                    self._spill(heavy)

    def placed(self, step: ModelStep) -> None:
        """A step has its samples: those of recorded datasets are waiting for nothing but its gradients now."""
        owners = list({id(pending): pending for pending, _ in step.rows}.values())
        for pending in owners:
            if id(pending) in self._loose:
                self._batches.append(self._tight(pending))
        self._settle(owners)

    def everything(self) -> Iterator[UnpredictedBatch]:
        """All that is left, in order, taken out."""
        while self._batches:
            yield self._left(self._batches.popleft())
        while self._loose:
            yield self._left(self._tight(next(iter(self._loose.values()))))

    def _tight(self, pending: UnpredictedBatch) -> UnpredictedBatch:
        """A loose one that has become part of a batch."""
        del self._loose[id(pending)]
        self._samples -= len(pending.indices)
        return pending

    def _left(self, pending: UnpredictedBatch) -> UnpredictedBatch:
        """One that waits no more."""
        self._bytes -= pending.size
        for digest in {digest for digest in pending.digests if digest is not None}:
            left = [place for place in self._by_digest.get(digest, ()) if place[0] is not pending]
            if left:
                self._by_digest[digest] = left
            else:
                self._by_digest.pop(digest, None)
        return pending

    def _settle(self, current: list[UnpredictedBatch]) -> None:
        """Write what is whole: the loop has gone on to another batch since its predictions came."""
        lost = [pending for pending in self._batches if not pending.predicted and not pending.held]
        old = {id(pending) for pending in lost[: max(len(lost) - _RECENT, 0)]}
        for pending in list(self._batches):
            if (pending.predicted or id(pending) in old) and not any(pending is other for other in current):
                self._batches.remove(pending)
                self._write(self._left(pending))

    # -- which samples are these? ----------------------------------------------------------------

    def track(self, data: Any, pending: UnpredictedBatch) -> None:
        """Follow the tensors of a batch that is about to be given to the loop."""
        for tensor in all_tensors(data):
            origins = pending.origins(tensor)
            if origins is not None:
                self.tracker.add(tensor, origins)

    def find(self, given: torch.Tensor | None, arguments: list[Any]) -> BatchMatch:
        """The samples that a model is called with; raises `Unmatched` when nothing proves which they are."""
        if given is None:
            return self._by_object(arguments)
        origins, evidence = self.tracker.origins_of(given), "batch"
        if origins is None:
            origins, evidence = self._by_memory(given), "view"
        if origins is None:
            match = self._by_content(given)
            if match is None:
                raise Unmatched("The input is neither made of a recorded batch nor the content of a recorded sample.")
            return match
        if any(self._is_foreign(other, given) for other in all_tensors(arguments)):
            raise Unmatched("Another argument of the call is as large as the batch and is not made of it.")
        rows = self._resolved(origins)
        if rows is None or all(row is None for row in rows):
            raise Unmatched("The input was made of a tensor that is not a recorded batch.")
        if origins.operations or origins.axis != 0:
            return BatchMatch(rows, evidence if evidence == "view" else "operations", operations=origins.operations)
        return self._in_their_order(given, rows)

    def _by_object(self, arguments: list[Any]) -> BatchMatch:
        """The batch is an object of the user's own, and the model was given that very object."""
        for pending in reversed(self._batches):
            own = [found for reference in pending.objects if (found := reference()) is not None]
            if any(mine is other for mine in own for other in arguments):
                return BatchMatch([(pending, place) for place in pending.ok], "object")
        raise Unmatched("The model was given neither a tensor nor an object of a recorded batch.")

    def _by_memory(self, given: torch.Tensor) -> RowOrigins | None:
        """A view of a batch that was made where nobody looked."""
        for pending in reversed(self._batches):
            for mine, origins in self._known_memory(pending):
                if origins is not None and origins.axis == 0 and (rows := _rows_viewed(mine, given)) is not None:
                    return RowOrigins(tuple(origins.rows[n] for n in rows), 0, (*origins.operations, "view"))
        return None

    def _known_memory(self, pending: UnpredictedBatch) -> Iterator[tuple[torch.Tensor, RowOrigins | None]]:
        alive = [tensor for reference in pending.tensors if (tensor := reference()) is not None]
        for tensor in alive:
            yield tensor, self.tracker.origins_of(tensor)
        for tensor, version in pending.memory:
            # Where the tensor itself is gone: nothing was changed in place, or nothing is known.
            if version_of(tensor) == version and not any(tensor.data_ptr() == one.data_ptr() for one in alive):
                yield tensor, pending.origins(tensor)

    def _is_foreign(self, other: torch.Tensor, given: torch.Tensor) -> bool:
        """Whether another argument of the call is as large as a batch, and is none: a generated picture, say."""
        if other is given or not other.is_floating_point() or other.dim() != given.dim() or other.dim() < 2:
            return False
        return other.shape[0] == given.shape[0] and self.tracker.origins_of(other) is None

    def _resolved(self, origins: RowOrigins) -> list[Place | None] | None:
        """Samples for rows, where some are known only by their content."""
        contents = {id(row[0]): row[0] for row in origins.rows if row is not None and isinstance(row[0], Content)}
        if not contents:
            return list(origins.rows)
        found: dict[int, list[Place | None]] = {}
        for key, content in contents.items():
            match = self._by_content(content.rows) if content.rows is not None else None
            if match is None:
                return None
            found[key] = match.rows
        return [row if row is None or id(row[0]) not in found else found[id(row[0])][row[1]] for row in origins.rows]

    def _in_their_order(self, given: torch.Tensor, rows: list[Place | None]) -> BatchMatch:
        """The batch as it came. Where each row is the content of another sample of it, a collate function sorted them."""
        places: list[Place] = [row for row in rows if row is not None]
        digests = row_digests(given, places) if len(places) == len(rows) else None
        if digests is None:
            return BatchMatch(rows, "batch")
        expected = [pending.digests[place] for pending, place in places]
        if digests != expected and None not in digests and sorted(map(str, digests)) == sorted(map(str, expected)):
            left = dict(enumerate(expected))
            order = []
            for digest in digests:
                at = next(n for n, wanted in left.items() if wanted == digest)
                del left[at]
                order.append(at)
            return BatchMatch([places[n] for n in order], "content", digests)
        return BatchMatch(rows, "batch", digests)

    def _by_content(self, given: torch.Tensor) -> BatchMatch | None:
        """Each row by its digest."""
        if given.dim() == 0 or not len(given) or not self._by_digest:
            return None
        rows = given.detach().cpu()
        for form in _FORMS:
            first = _digest(form, rows[0])
            if first is None or not self._places(first):
                continue
            digests = [first, *(_digest(form, row) for row in rows[1:])]
            taken: set[tuple[int, int]] = set()
            found: list[Place | None] = []
            for digest in digests:
                place = self._next_place(digest, taken)
                if place is None:
                    break
                taken.add((id(place[0]), place[1]))
                found.append(place)
            if len(found) == len(digests):
                return BatchMatch(found, "content", list(digests))
        return None

    def _next_place(self, digest: str | None, taken: set[tuple[int, int]]) -> Place | None:
        """A sample with this content: one without a prediction if there is one, of the newest pass over a loader."""
        free = [place for place in self._places(digest) if (id(place[0]), place[1]) not in taken]
        if not free:
            return None
        waiting = [
            (pending, place) for pending, place in free if not any(place in p for p in pending.predicted.values())
        ]
        candidates = waiting or free
        newest = candidates[-1][0].origin
        return next((one for one in candidates if one[0].origin is newest), candidates[0])

    def _places(self, digest: str | None) -> list[Place]:
        return self._by_digest.get(digest, []) if digest is not None else []


def _references(data: Any) -> Iterator[weakref.ref[Any]]:
    """Objects in a batch that can be known again by their identity."""
    parts = [data, *data] if isinstance(data, (tuple, list)) else [data]
    for part in parts:
        if not isinstance(part, (torch.Tensor, tuple, list, dict, str, int, float)):
            with contextlib.suppress(TypeError):
                yield weakref.ref(part)


def _rows_viewed(own: torch.Tensor, other: torch.Tensor) -> list[int] | None:
    """Which rows of one tensor another is a view of; None when it is none, or its rows are not whole samples' parts."""
    try:
        if other.dim() == 0 or own.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
            return None
        if own.untyped_storage().data_ptr() == 0 or own.dtype != other.dtype:
            return None
    except (RuntimeError, NotImplementedError):
        return None
    step = own.stride(0)
    within = sum((size - 1) * stride for size, stride in zip(other.shape[1:], other.stride()[1:], strict=True))
    first, offset = divmod(int(other.storage_offset()) - int(own.storage_offset()), step) if step else (0, 0)
    if step <= 0 or other.stride(0) % step or offset + within >= step:
        return None
    rows = [first + n * (other.stride(0) // step) for n in range(other.shape[0])]
    return rows if all(0 <= row < own.shape[0] for row in rows) else None


def all_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in a batch or in a model's arguments."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from all_tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from all_tensors(item)


#: An array, a number or a list became a tensor when it was collated: the same content under another kind.
_FORMS: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda row: row,
    lambda row: row.numpy(),
    lambda row: row.tolist(),
    # tv_tensors become plain ones when they are stacked.
    *(functools.partial(values.as_form, form=f"tv_tensors.{name}") for name in ("Image", "Video", "Mask")),
)


def _digest(form: Callable[[torch.Tensor], Any], row: torch.Tensor) -> str | None:
    try:
        return values.digest(form(row))
    except (TypeError, RuntimeError, ValueError):
        return None


def row_digests(given: torch.Tensor | None, rows: list[Place], inputs: list[int] | None = None) -> list[str | None]:
    """The digest of each sample's row of a model's input, as its sample's last stage would have it."""
    found: list[str | None] = [None] * len(rows)
    if given is None or given.dim() == 0 or given.shape[0] < len(rows):
        return found
    if inputs is None and given.shape[0] != len(rows):
        return found
    form = _FORMS[0]
    seen = given.detach().cpu()
    for number, (pending, place) in enumerate(rows):
        row = seen[number if inputs is None else inputs[number]]
        digest, wanted = _digest(form, row), pending.digests[place]
        if digest != wanted and wanted is not None and number == 0:
            form = next((other for other in _FORMS if _digest(other, row) == wanted), form)
            digest = _digest(form, row)
        found[number] = digest
    return found
