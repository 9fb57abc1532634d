"""The batches that wait for predictions, in the order in which the loop was given them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from audit.recorders.model.step import ModelStep, Place
from audit.recorders.model.unpredicted_batch import BatchRows, UnpredictedBatch

#: How many batches that the loop holds no more may wait: a loop may have moved them to a device, and fetched ahead.
_RECENT = 64
#: How many bytes of rows may wait for predictions; above it all but `samples` is written at once.
_MOST_BYTES = 128 * 2**20
#: How many may wait while no model is recorded.
_MOST_BYTES_WITHOUT_MODEL = 16 * 2**20
_MOST_SAMPLES = 1 << 16


class WaitingBatches:
    """Holds batches until their predictions have come. What need not wait any longer is returned as rows."""

    def __init__(self) -> None:
        self._batches: deque[UnpredictedBatch] = deque()
        self._loose: dict[int, UnpredictedBatch] = {}
        #: Samples by their content, and the batches whose samples are not among them yet: most are never looked for.
        self._by_digest: dict[str, list[Place]] = {}
        self._unlisted: list[UnpredictedBatch] = []
        self._bytes = 0
        self._samples = 0
        #: By loader and epoch, how many batches with good samples the loop was given, and how many went to a recorded model.
        self._given: Counter[tuple[int, int]] = Counter()
        self._called: Counter[tuple[int, int]] = Counter()

    def count_uncalled(self) -> tuple[int, int]:
        """Return how many batches of epochs of which a recorded model was given a part went to none, and to one."""
        return sum(self._given[key] - self._called[key] for key in self._called), self._called.total()

    @property
    def newest_batch(self) -> UnpredictedBatch | None:
        """The batch that came last."""
        return self._batches[-1] if self._batches else None

    @property
    def has_digests(self) -> bool:
        """Whether any sample can be found by its content."""
        return bool(self._list_by_content())

    def newest_first(self) -> Iterator[UnpredictedBatch]:
        """Yield the batches of loaders, the newest first."""
        return reversed(self._batches)

    def places_of(self, digest: str | None) -> list[Place]:
        """Return the samples with this content, the oldest first."""
        return self._list_by_content().get(digest, []) if digest is not None else []

    def _list_by_content(self) -> dict[str, list[Place]]:
        """Return the samples of all batches that wait, by their content."""
        for batch in self._unlisted:
            for place in batch.ok:
                digest = batch.digests[place]
                if digest is not None:
                    self._by_digest.setdefault(digest, []).append((batch, place))
        self._unlisted = []
        return self._by_digest

    def add(self, batch: UnpredictedBatch) -> list[BatchRows]:
        """Add a batch that is about to be given to the loop; return the rows of those that wait no longer."""
        if self._batches:
            # The loop itself lets go of the batch before this one: its tensors lead to it where they are still used.
            self._batches[-1].memory = []
        self._batches.append(batch)
        self._given[batch.origin_key, batch.epoch] += bool(batch.ok)
        return [*self._enter(batch), *self._take_finished([batch])]

    def add_loose(self, batch: UnpredictedBatch) -> list[BatchRows]:
        """Add items of a recorded dataset; return the rows of those that wait no longer."""
        self._loose[id(batch)] = batch
        self._samples += len(batch.indices)
        rows = self._enter(batch)
        while self._samples > _MOST_SAMPLES and len(self._loose) > 1:
            rows.append(self._remove(self._take_loose(next(iter(self._loose.values())))))
        return rows

    def _enter(self, batch: UnpredictedBatch) -> list[BatchRows]:
        self._unlisted.append(batch)
        self._bytes += batch.size
        rows: list[BatchRows] = []
        if self._bytes > _MOST_BYTES:
            for heavy in [*self._loose.values(), *self._batches]:
                if heavy.size and heavy is not batch and self._bytes > _MOST_BYTES:
                    self._bytes -= heavy.size
                    rows.append(heavy.take_heavy_rows())
        return rows

    def change_digest(self, batch: UnpredictedBatch, place: int, digest: str | None) -> None:
        """Take in that a sample has another content now: what a stage made of it after the loader."""
        self._list_by_content()
        before = batch.digests[place]
        known = id(batch) in self._loose or any(batch is one for one in self._batches)
        if before is not None:
            left = [one for one in self._by_digest.get(before, ()) if one[0] is not batch or one[1] != place]
            if left:
                self._by_digest[before] = left
            else:
                self._by_digest.pop(before, None)
        batch.digests[place] = digest
        if digest is not None and known:
            self._by_digest.setdefault(digest, []).append((batch, place))

    def confirm(self, step: ModelStep) -> list[BatchRows]:
        """Take a step's samples as predicted; return the rows of batches that wait no longer.

        Those of recorded datasets wait for nothing but the step's gradients from now on.
        """
        owners = list({id(batch): batch for batch, _ in step.rows}.values())
        for batch in (*owners, *(batch for mixed in step.parents for batch, _ in mixed or ())):
            self._called[batch.origin_key, batch.epoch] += not (batch.is_called or batch.loose)
            batch.is_called = True
        for batch in owners:
            if id(batch) in self._loose:
                self._batches.append(self._take_loose(batch))
        return self._take_finished(owners)

    def take_oldest(self) -> BatchRows | None:
        """Remove the oldest batch that the loop has left; return its rows, or None where there is none."""
        return self._remove(self._batches.popleft()) if len(self._batches) > 1 else None

    def take_large(self) -> list[BatchRows]:
        """Remove the oldest batches while those that wait are large and no model can predict anything; return their rows."""
        rows: list[BatchRows] = []
        while self._bytes > _MOST_BYTES_WITHOUT_MODEL and (oldest := self.take_oldest()) is not None:
            rows.append(oldest)
        return rows

    def take_rest(self) -> Iterator[BatchRows]:
        """Yield the rows of all that is left, in order."""
        while self._batches:
            yield self._remove(self._batches.popleft())
        while self._loose:
            yield self._remove(self._take_loose(next(iter(self._loose.values()))))

    def _take_loose(self, batch: UnpredictedBatch) -> UnpredictedBatch:
        """Take a batch out of those whose place in the loop's batches is not known."""
        del self._loose[id(batch)]
        self._samples -= len(batch.indices)
        return batch

    def _remove(self, batch: UnpredictedBatch) -> BatchRows:
        """Forget a batch; return its rows."""
        self._bytes -= batch.size
        if any(batch is one for one in self._unlisted):
            self._unlisted = [one for one in self._unlisted if one is not batch]
            return batch.take_rows()
        for digest in {digest for digest in batch.digests if digest is not None}:
            left = [place for place in self._by_digest.get(digest, ()) if place[0] is not batch]
            if left:
                self._by_digest[digest] = left
            else:
                self._by_digest.pop(digest, None)
        return batch.take_rows()

    def _take_finished(self, current: list[UnpredictedBatch]) -> list[BatchRows]:
        """Remove the batches that are complete: the loop has gone on to another since their predictions came."""
        is_many = len(self._batches) > _RECENT
        lost = [batch for batch in self._batches if not batch.predicted and not batch.is_held] if is_many else []
        old = {id(batch) for batch in lost[: max(len(lost) - _RECENT, 0)]}
        rows: list[BatchRows] = []
        for batch in list(self._batches):
            if (batch.predicted or id(batch) in old) and not any(batch is other for other in current):
                self._batches.remove(batch)
                rows.append(self._remove(batch))
        return rows
