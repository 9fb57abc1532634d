"""Batches that the loop has been given, and whose predictions may still come.

Finds out which samples a model was called with: by the tensors themselves, else by the content of each row, else, when
the batch was changed on its way (normalised, cast, mixed), by being the only one of that length that can be meant. Where several can,
and for a row that fits nothing, nobody gets the prediction: none is better than another sample's.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any

import torch

from audit import values
from audit.recorders.steps import Place, Step

#: How many batches that nobody holds any more may wait: a loop may have moved them to a device, and fetched ahead.
_RECENT = 64
#: How many bytes of rows may wait for predictions; above it all but `samples` is written at once.
_MOST_BYTES = 128 * 2**20
_MOST_SAMPLES = 1 << 16


@dataclass(slots=True, eq=False)
class Pending:
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
    memory: list[torch.Tensor] = field(default_factory=list)
    #: Places that each model, by id, has predicted already; the first model's predictions are those that are kept.
    predicted: dict[int, set[int]] = field(default_factory=dict)
    predictions: list[Any] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self, data: Any) -> None:
        own = list(all_tensors(data))
        self.tensors = [weakref.ref(tensor) for tensor in own]
        self.memory = [tensor.detach() for tensor in own]

    @property
    def held(self) -> bool:
        """Whether the loop still holds a tensor of it."""
        return any(reference() is not None for reference in self.tensors)

    def is_batch(self, arguments: list[torch.Tensor]) -> bool:
        """Whether one of these is a tensor of it, or a view of all of one."""
        own = [*self.memory, *(tensor for reference in self.tensors if (tensor := reference()) is not None)]
        return any(_same(mine, other) for mine in own for other in arguments)

    def free(self, model: int) -> list[int]:
        """Places that this model has not predicted."""
        taken = self.predicted.get(model)
        return self.ok if not taken else [place for place in self.ok if place not in taken]


@dataclass(frozen=True, slots=True)
class Match:
    """The rows of a model's input, each with its sample."""

    rows: list[Place]
    digests: list[str | None] | None = None


class Unclear(Exception):
    """More than one batch that waits could be the one that the model was called with."""


class Waiting:
    """All that waits. `write` is called once for each, `spill` before that with what need not wait."""

    def __init__(self, write: Callable[[Pending], None], spill: Callable[[Pending], None]) -> None:
        self._write = write
        self._spill = spill
        self._batches: deque[Pending] = deque()
        self._loose: dict[int, Pending] = {}
        self._by_digest: dict[str, list[Place]] = {}
        self._bytes = 0
        self._samples = 0

    @property
    def newest(self) -> Pending | None:
        """The batch that came last."""
        return self._batches[-1] if self._batches else None

    def add(self, pending: Pending) -> None:
        """A batch that is about to be given to the loop."""
        if self._batches:
            # The loop itself lets go of the batch before this one: whoever still has its tensors is found by them.
            self._batches[-1].memory = []
        self._batches.append(pending)
        self._enter(pending)
        self._settle([pending])

    def add_loose(self, pending: Pending) -> None:
        """Items of a recorded dataset."""
        self._loose[id(pending)] = pending
        self._samples += len(pending.indices)
        self._enter(pending)
        while self._samples > _MOST_SAMPLES and len(self._loose) > 1:
            self._write(self._left(self._tight(next(iter(self._loose.values())))))

    def _enter(self, pending: Pending) -> None:
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

    def placed(self, step: Step) -> None:
        """A step has its samples: those of recorded datasets are waiting for nothing but its gradients now."""
        owners = list({id(pending): pending for pending, _ in step.rows}.values())
        for pending in owners:
            if id(pending) in self._loose:
                self._batches.append(self._tight(pending))
        self._settle(owners)

    def everything(self) -> Iterator[Pending]:
        """All that is left, in order, taken out."""
        while self._batches:
            yield self._left(self._batches.popleft())
        while self._loose:
            yield self._left(self._tight(next(iter(self._loose.values()))))

    def _tight(self, pending: Pending) -> Pending:
        """A loose one that has become part of a batch."""
        del self._loose[id(pending)]
        self._samples -= len(pending.indices)
        return pending

    def _left(self, pending: Pending) -> Pending:
        """One that waits no more."""
        self._bytes -= pending.size
        for digest in {digest for digest in pending.digests if digest is not None}:
            left = [place for place in self._by_digest.get(digest, ()) if place[0] is not pending]
            if left:
                self._by_digest[digest] = left
            else:
                self._by_digest.pop(digest, None)
        return pending

    def _settle(self, current: list[Pending]) -> None:
        """Write what is whole: the loop has gone on to another batch since its predictions came."""
        lost = [pending for pending in self._batches if not pending.predicted and not pending.held]
        old = {id(pending) for pending in lost[: max(len(lost) - _RECENT, 0)]}
        for pending in list(self._batches):
            if (pending.predicted or id(pending) in old) and not any(pending is other for other in current):
                self._batches.remove(pending)
                self._write(self._left(pending))

    # -- which samples are these? ----------------------------------------------------------------

    def find(self, model: int, given: torch.Tensor | None, arguments: list[torch.Tensor]) -> Match | None:
        """The samples that a model is called with; None when they are not known, or were predicted before."""
        for pending in reversed(self._batches):
            if pending.is_batch(arguments):
                # The very batch again is a second call with it, not another batch of that length.
                free = pending.free(model)
                return Match([(pending, place) for place in free]) if len(free) == len(pending.ok) else None
        fitting = self._fitting(model, given)
        # To look at values on a device is to wait for it: only where there is a choice.
        if given is not None and given.dim() > 0 and (given.device.type == "cpu" or self._loose or len(fitting) > 1):
            match, known = self._by_content(model, given)
            if match is not None or known:
                return match
        if len(fitting) > 1:
            raise Unclear
        return Match([(fitting[0], place) for place in fitting[0].ok]) if fitting else None

    def _by_content(self, model: int, given: torch.Tensor) -> tuple[Match | None, bool]:
        """Each row by its digest; also whether the rows are known at all."""
        rows = given.detach().cpu()
        for form in _FORMS:
            first = _digest(form, rows[0]) if len(rows) else None
            if first is None or not self._places(first):
                continue
            digests = [first, *(_digest(form, row) for row in rows[1:])]
            if not all(self._places(digest) for digest in digests):
                continue
            taken: set[tuple[int, int]] = set()
            found: list[Place] = []
            for digest in digests:
                place = self._next_place(model, digest, taken)
                if place is None:
                    return None, True
                taken.add((id(place[0]), place[1]))
                found.append(place)
            return Match(found, list(digests)), True
        return None, False

    def _next_place(self, model: int, digest: str | None, taken: set[tuple[int, int]]) -> Place | None:
        for pending, place in self._places(digest):
            used = place in pending.predicted.get(model, ()) or (id(pending), place) in taken
            if not used:
                return pending, place
        return None

    def _places(self, digest: str | None) -> list[Place]:
        return self._by_digest.get(digest, []) if digest is not None else []

    def _fitting(self, model: int, given: torch.Tensor | None) -> list[Pending]:
        """The batches that may have been changed into this input. A loop takes the batches of a pass in their order."""
        length = given.shape[0] if given is not None and given.dim() else None
        passed: set[int] = set()
        fitting: list[Pending] = []
        for pending in reversed(self._batches):
            origin = pending.origin() if pending.origin is not None else None
            if pending.predicted.get(model):
                passed.add(id(origin))
            elif pending.ok and length in (None, len(pending.ok)) and (origin is None or id(origin) not in passed):
                fitting.append(pending)
        if not fitting:
            # Items arrive in the order that workers finish them: with more than one to choose from, nothing is known.
            loose = [p for p in self._loose.values() if p.ok and length in (None, len(p.ok))]
            return loose if len(loose) == 1 else []
        # Whether the loop still holds a batch tells nothing: its variables are those of the one it fetched last.
        return [p for p in fitting if p.origin is not None and p.origin() is not None] or fitting


def _same(own: torch.Tensor, other: torch.Tensor) -> bool:
    if own is other:
        return True
    try:
        # A view of the whole batch is the batch.
        return own.data_ptr() == other.data_ptr() != 0 and own.numel() == other.numel() > 0
    except RuntimeError:
        return False


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
)


def _digest(form: Callable[[torch.Tensor], Any], row: torch.Tensor) -> str | None:
    try:
        return values.digest(form(row))
    except (TypeError, RuntimeError, ValueError):
        return None


def row_digests(given: torch.Tensor | None, rows: list[Place]) -> list[str | None]:
    """The digest of each row of a model's input, as its sample's last stage would have it."""
    nothing: list[str | None] = [None] * len(rows)
    if given is None or given.dim() == 0 or given.shape[0] != len(rows):
        return nothing
    found = nothing
    form = _FORMS[0]
    seen = given.detach().cpu()
    for number, ((pending, place), row) in enumerate(zip(rows, seen, strict=True)):
        digest, wanted = _digest(form, row), pending.digests[place]
        if digest != wanted and wanted is not None and number == 0:
            form = next((other for other in _FORMS if _digest(other, row) == wanted), form)
            digest = _digest(form, row)
        found[number] = digest
    return found
