"""Batches that the loop has been given, and whose predictions may still come.

Finds out which samples a model was called with: by the tensors themselves, else by the content of each row, else, when
the batch was changed on its way (moved, normalised, mixed), by being the newest of that length. A row that fits nothing is given to
nobody: no prediction is better than another sample's.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from audit import values
from audit.recorders.steps import Place, Step

#: How many batches may wait for their predictions: a loop may fetch ahead of the model.
_RECENT = 8
#: How many bytes of rows of recorded datasets may wait for theirs; above it all but `samples` is written at once.
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
    data: Any = None
    tensors: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    #: Places that each model, by id, has predicted already; the first model's predictions are those that are kept.
    predicted: dict[int, set[int]] = field(default_factory=dict)
    predictions: list[Any] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tensors = [weakref.ref(tensor) for tensor in all_tensors(self.data)]

    def free(self, model: int) -> list[int]:
        """Places that this model has not predicted."""
        taken = self.predicted.get(model)
        return self.ok if not taken else [place for place in self.ok if place not in taken]


@dataclass(frozen=True, slots=True)
class Match:
    """The rows of a model's input, each with its sample."""

    rows: list[Place]
    digests: list[str | None] | None = None
    #: More than one batch would have fitted, and the newest was taken.
    guessed: bool = False


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
            self._batches[-1].data = None
        self._batches.append(pending)
        self._settle([pending])

    def add_loose(self, pending: Pending) -> None:
        """Items of a recorded dataset."""
        self._loose[id(pending)] = pending
        for place in pending.ok:
            digest = pending.digests[place]
            if digest is not None:
                self._by_digest.setdefault(digest, []).append((pending, place))
        self._bytes += pending.size
        self._samples += len(pending.indices)
        while self._bytes > _MOST_BYTES and (heavy := next((p for p in self._loose.values() if p.size), None)):
            self._bytes -= heavy.size
            heavy.size = 0
            self._spill(heavy)
        while self._samples > _MOST_SAMPLES and len(self._loose) > 1:
            self._write(self._take_loose(next(iter(self._loose.values()))))

    def placed(self, step: Step) -> None:
        """A step has its samples: those of recorded datasets are waiting for nothing but its gradients now."""
        owners = list({id(pending): pending for pending, _ in step.rows}.values())
        for pending in owners:
            if id(pending) in self._loose:
                self._batches.append(self._take_loose(pending))
        self._settle(owners)

    def everything(self) -> Iterator[Pending]:
        """All that is left, in order, taken out."""
        while self._batches:
            yield self._batches.popleft()
        while self._loose:
            yield self._take_loose(next(iter(self._loose.values())))

    def _take_loose(self, pending: Pending) -> Pending:
        del self._loose[id(pending)]
        self._bytes -= pending.size
        self._samples -= len(pending.indices)
        for digest in {digest for digest in pending.digests if digest is not None}:
            left = [place for place in self._by_digest.get(digest, ()) if place[0] is not pending]
            if left:
                self._by_digest[digest] = left
            else:
                self._by_digest.pop(digest, None)
        return pending

    def _settle(self, current: list[Pending]) -> None:
        """Write what is whole: the loop has gone on to another batch since its predictions came."""
        unpredicted = sum(not pending.predicted for pending in self._batches)
        for pending in list(self._batches):
            old = not pending.predicted and unpredicted > _RECENT
            if (pending.predicted or old) and not any(pending is other for other in current):
                unpredicted -= not pending.predicted
                self._batches.remove(pending)
                self._write(pending)

    # -- which samples are these? ----------------------------------------------------------------

    def find(self, model: int, given: torch.Tensor | None, arguments: list[torch.Tensor]) -> Match | None:
        """The samples that a model is called with; None when they are not known, or were predicted before."""
        for pending in reversed(self._batches):
            if any(_same(own(), other) for own in pending.tensors for other in arguments):
                # The very batch again is a second call with it, not another batch of that length.
                free = pending.free(model)
                return Match([(pending, place) for place in free]) if len(free) == len(pending.ok) else None
        if given is not None and given.dim() > 0 and (given.device.type == "cpu" or self._loose):
            match, known = self._by_content(model, given)
            if match is not None or known:
                return match
        return self._by_order(model, given)

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
        if digest is None:
            return []
        own = [(p, place) for p in self._batches for place in p.ok if p.digests[place] == digest]
        return own + self._by_digest.get(digest, [])

    def _by_order(self, model: int, given: torch.Tensor | None) -> Match | None:
        length = given.shape[0] if given is not None and given.dim() else None
        fitting = [p for p in self._batches if p.ok and not p.predicted.get(model) and length in (None, len(p.ok))]
        if not fitting:
            fitting = [p for p in self._loose.values() if p.ok and length in (None, len(p.ok))]
            if len(fitting) != 1:
                # Items arrive in the order that workers finish them: the newest need not be the loop's.
                return None
        newest = fitting[-1]
        return Match([(newest, place) for place in newest.ok], guessed=len(fitting) > 1)


def _same(own: torch.Tensor | None, other: torch.Tensor) -> bool:
    if own is None:
        return False
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
