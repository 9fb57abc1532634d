"""Finds out which samples a model was called with, by evidence alone.

Evidence is: the tensors of the batch themselves, what the loop made of them (see batch_tracker.py), a view of their memory,
or the content of each row. A batch of the same length is not evidence. Without any the prediction is not stored: none is
better than another sample's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from audit.recorders.batch_tensors import all_tensors, find_viewed_rows, is_list_of_tensors, split_listed_samples
from audit.recorders.items.item_parts import input_part
from audit.recorders.model.batch_tracker import BatchTracker, UnknownTensor, version_of
from audit.recorders.model.row_digests import FORMS, digest_row, row_digests
from audit.recorders.model.row_origins import MixedRow, Row, RowOrigins, mix_rows, parents_of
from audit.recorders.model.step import Place
from audit.recorders.model.unpredicted_batch import UnpredictedBatch
from audit.recorders.model.waiting_batches import WaitingBatches


@dataclass(frozen=True, slots=True)
class BatchMatch:
    """The rows of a model's input, each with its sample; None for a row that is not a recorded sample."""

    rows: list[Place | None]
    #: What proves it: `batch`, `operations`, `view`, `content` or `object`.
    evidence: str
    digests: list[str | None] | None = None
    operations: tuple[str, ...] = ()
    #: For each row the samples that it was mixed from; None for a row that was not mixed.
    parents: list[tuple[Place, ...] | None] | None = None


#: The operation that leads from an item to one tensor of it, where its stages did not end with that tensor.
PART = "part"


class UnmatchedCall(Exception):
    """Nothing proves which samples a model was called with; says why."""


def track_batch(tracker: BatchTracker, data: Any, batch: UnpredictedBatch) -> None:
    """Follow the tensors of a batch that is about to be given to the loop."""
    for tensors in split_listed_samples(data, len(batch.ok)) if batch.layout is None else ():
        batch.singles |= {tensor.data_ptr(): place for tensor, place in _places_in(tensors, batch) if tensor.numel()}
    value = input_part(data)
    for tensor in all_tensors(data):
        origins = batch.origins(tensor)
        if origins is None:
            continue
        if batch.layout is None and origins.axis == 0 and tensor is not value:
            # The second view, say: what the stages recorded is another tensor of the item, or all of them together.
            origins = replace(origins, operations=(PART,))
        tracker.add(tensor, origins)


def _places_in(tensors: Sequence[torch.Tensor], batch: UnpredictedBatch) -> list[tuple[torch.Tensor, int]]:
    """Return the place of each tensor of a list, where each is one sample; nothing where that is not certain.

    A collate function may have sorted them: their content decides where it is known.
    """
    expected = [batch.digests[place] for place in batch.ok]
    found = list(map(_whole_digest, tensors, expected))
    if None not in found and sorted(map(str, found)) == sorted(map(str, expected)):
        left = list(batch.ok)
        pairs = []
        for tensor, digest in zip(tensors, found, strict=True):
            place = next(place for place in left if batch.digests[place] == digest)
            left.remove(place)
            pairs.append((tensor, place))
        return pairs
    if any(tensor.dim() and tensor.shape[0] == len(batch.ok) for tensor in tensors):
        return []  # these may be whole batches, side by side
    return list(zip(tensors, batch.ok, strict=True))


def _whole_digest(tensor: torch.Tensor, expected: str | None) -> str | None:
    """Return the digest of a tensor, in the form in which it is the expected one if there is such a form."""
    value = tensor.detach().cpu()
    return expected if is_content(value, expected) else digest_row(FORMS[0], value)


def is_content(value: torch.Tensor, digest: str | None) -> bool:
    """Return whether a tensor, in any form that collating may have changed, has this digest."""
    return digest is not None and any(digest_row(form, value) == digest for form in FORMS)


class BatchMatcher:
    """Finds the samples of a model's input among the batches that wait for predictions."""

    def __init__(self, batches: WaitingBatches, tracker: BatchTracker) -> None:
        self._batches = batches
        self._tracker = tracker

    def find(self, input_tensor: torch.Tensor | None, arguments: list[Any]) -> BatchMatch:
        """Return the samples that a model is called with. Raises `UnmatchedCall` when nothing proves which they are."""
        if input_tensor is None:
            return self._match_object(arguments)
        listed = next((one for one in arguments if is_list_of_tensors(one)), None)
        if input_tensor.is_nested:
            match = self._match_list(input_tensor.unbind())
            if match is None:
                raise UnmatchedCall("The input is a nested tensor whose parts are not the content of recorded samples.")
            return match
        if listed is not None and (match := self._match_list(listed)) is not None:
            return match
        match = self._match_tensor(input_tensor)
        others = [one for one in all_tensors(arguments) if one is not input_tensor]
        if any(self._is_foreign(other, input_tensor) for other in others):
            raise UnmatchedCall("Another argument of the call is as large as the batch and is not made of it.")
        return self._with_other_samples(match, others)

    def _match_tensor(self, input_tensor: torch.Tensor) -> BatchMatch:
        """Return the samples of the rows of one tensor."""
        origins, evidence = self._tracker.origins_of(input_tensor), "batch"
        if origins is None:
            origins, evidence = self._find_view(input_tensor), "view"
        if origins is None:
            match = self._match_content(input_tensor)
            if match is None:
                raise UnmatchedCall(self._why_not_known())
            return match
        rows = self._resolve_rows(origins)
        if rows is None or all(row is None for row in rows):
            raise UnmatchedCall("The input was made of a tensor that is not a recorded batch.")
        if origins.operations or origins.axis != 0:
            evidence = evidence if evidence == "view" else "operations"
            return _with_parents(BatchMatch([], evidence, operations=origins.operations), rows)
        return self._match_whole_batch(input_tensor, rows)

    def _with_other_samples(self, match: BatchMatch, others: Sequence[torch.Tensor]) -> BatchMatch:
        """Return the match with the samples of other arguments too: the output of a siamese net is about the samples of both."""
        parents = match.parents or [None] * len(match.rows)
        rows: list[Row] = [
            row if row is None or mixed is None else MixedRow(*row, mixed)
            for row, mixed in zip(match.rows, parents, strict=True)
        ]
        paired = rows
        for other in others:
            origins = self._tracker.origins_of(other) if other.is_floating_point() else None
            if origins is None or origins.axis is None or len(origins.rows) != len(rows):
                continue
            theirs = self._resolve_rows(origins)
            if theirs is not None and theirs != rows:
                paired = [mix_rows(own, [own, row]) for own, row in zip(paired, theirs, strict=True)]
        if paired is rows:
            return match
        return _with_parents(replace(match, operations=(*match.operations, "mix")), paired)

    def _match_list(self, listed: Sequence[torch.Tensor]) -> BatchMatch | None:
        """Match a list in which each tensor is one sample, as detectors take it; None if that is not what it is."""
        rows: list[Row] = []
        operations: dict[str, None] = {}
        taken: set[tuple[int, int]] = set()
        evidence = "batch"
        for tensor in listed:
            origins = self._tracker.origins_of(tensor)
            row: Row = None
            if origins is not None and origins.axis is None and len(origins.rows) == 1:
                row = origins.rows[0]
                operations |= dict.fromkeys(origins.operations)
            elif origins is None:
                content = (digest_row(form, tensor.detach().cpu()) for form in FORMS)
                row = next((place for digest in content if (place := self._next_place(digest, taken))), None)
                evidence = "content" if row is not None else evidence
            if row is not None:
                taken.add((id(row[0]), row[1]))
            rows.append(row)
        if all(row is None for row in rows):
            return None
        expected = [None if row is None else row[0].digests[row[1]] for row in rows]
        digests = [_whole_digest(tensor, digest) for tensor, digest in zip(listed, expected, strict=True)]
        evidence = "operations" if operations else evidence
        return _with_parents(BatchMatch([], evidence, digests, tuple(operations)), rows)

    def _match_object(self, arguments: list[Any]) -> BatchMatch:
        """Match a batch that is an object of the user's own, where the model was given that very object."""
        for batch in self._batches.newest_first():
            own = [found for reference in batch.objects if (found := reference()) is not None]
            if any(mine is other for mine in own for other in arguments):
                if batch.layout is not None and not batch.layout.is_object_in_order:
                    raise UnmatchedCall(self._why_not_known())
                return BatchMatch([(batch, place) for place in batch.ok], "object")
        raise UnmatchedCall("The model was given neither a tensor nor an object of a recorded batch.")

    def _why_not_known(self) -> str:
        newest = self._batches.newest_batch
        if newest is None or newest.layout is None or newest.layout.unplaced is None:
            return "The input is neither made of a recorded batch nor the content of a recorded sample."
        return (
            f"The collate function {newest.layout.unplaced} changed the samples: the content of the batch does not show "
            "which row is which sample."
        )

    def _find_view(self, input_tensor: torch.Tensor) -> RowOrigins | None:
        """Return the rows of a view of a batch that was made where no operation was followed."""
        for batch in self._batches.newest_first():
            for mine, origins in self._readable_memory(batch):
                if (
                    origins is not None
                    and origins.axis == 0
                    and (rows := find_viewed_rows(mine, input_tensor)) is not None
                ):
                    return RowOrigins(tuple(origins.rows[n] for n in rows), 0, (*origins.operations, "view"))
        return None

    def _readable_memory(self, batch: UnpredictedBatch) -> Iterator[tuple[torch.Tensor, RowOrigins | None]]:
        alive = [tensor for reference in batch.tensors if (tensor := reference()) is not None]
        for tensor in alive:
            yield tensor, self._tracker.origins_of(tensor)
        for tensor, version in batch.memory:
            # Where the tensor itself is gone: nothing was changed in place, or nothing is known.
            if version_of(tensor) == version and not any(tensor.data_ptr() == one.data_ptr() for one in alive):
                yield tensor, batch.origins(tensor)

    def _is_foreign(self, other: torch.Tensor, input_tensor: torch.Tensor) -> bool:
        """Return whether another argument of the call is as large as a batch and is not a recorded one: a generated picture, say."""
        if not other.is_floating_point() or other.dim() != input_tensor.dim() or other.dim() < 2:
            return False
        if other.shape[0] != input_tensor.shape[0] or self._tracker.origins_of(other) is not None:
            return False
        # What a collate function put beside the samples, a mask say, is of the same batch.
        return not any(reference() is other for batch in self._batches.newest_first() for reference in batch.tensors)

    def _resolve_rows(self, origins: RowOrigins) -> list[Row] | None:
        """Return the sample of each row, where some are known only by their content."""
        samples = [sample for row in origins.rows for sample in (row, *parents_of(row)) if sample is not None]
        contents = {id(sample[0]): sample[0] for sample in samples if isinstance(sample[0], UnknownTensor)}
        if not contents:
            return list(origins.rows)
        found: dict[int, list[Place | None]] = {}
        for key, content in contents.items():
            match = self._match_content(content.rows) if content.rows is not None else None
            if match is None:
                return None
            found[key] = match.rows

        def resolve(sample: Row) -> Row:
            known = sample is None or id(sample[0]) not in found
            return sample if known or sample is None else found[id(sample[0])][sample[1]]

        return [
            mix_rows(resolve((row.batch, row.place)), [resolve(parent) for parent in row.parents])
            if isinstance(row, MixedRow)
            else resolve(row)
            for row in origins.rows
        ]

    def _match_whole_batch(self, input_tensor: torch.Tensor, rows: list[Row]) -> BatchMatch:
        """Match a batch as it came, or sorted by a collate function: each row is the content of another sample of it."""
        places: list[Place] = [(row[0], row[1]) for row in rows if row is not None]
        digests = row_digests(input_tensor, places) if len(places) == len(rows) else None
        if digests is None:
            return _with_parents(BatchMatch([], "batch"), rows)
        expected = [batch.digests[place] for batch, place in places]
        if digests != expected and None not in digests and sorted(map(str, digests)) == sorted(map(str, expected)):
            left = dict(enumerate(expected))
            order = []
            for digest in digests:
                at = next(n for n, other in left.items() if other == digest)
                del left[at]
                order.append(at)
            return BatchMatch([places[n] for n in order], "content", digests)
        return _with_parents(BatchMatch([], "batch", digests), rows)

    def _match_content(self, input_tensor: torch.Tensor) -> BatchMatch | None:
        """Match each row by its digest; None if a row is not the content of a sample that waits."""
        if input_tensor.dim() == 0 or not len(input_tensor) or not self._batches.has_digests:
            return None
        rows = input_tensor.detach().cpu()
        for form in FORMS:
            first = digest_row(form, rows[0])
            if first is None or not self._batches.places_of(first):
                continue
            digests = [first, *(digest_row(form, row) for row in rows[1:])]
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
        """Return a sample with this content, of the newest pass over a loader that has one: a batch that was fetched
        before and never used is not the one. A sample without a prediction comes first, then one that is not taken."""
        places = self._batches.places_of(digest)
        if not places:
            return None
        newest = places[-1][0].origin
        own = [place for place in places if place[0].origin is newest]
        free = [place for place in own if (id(place[0]), place[1]) not in taken]
        waiting = [(batch, place) for batch, place in free if not any(place in p for p in batch.predicted.values())]
        return next(iter(waiting or free or own))


def _with_parents(match: BatchMatch, rows: Sequence[Row]) -> BatchMatch:
    """Return the match with these rows: the place of each, and what it was mixed from."""
    places = [None if row is None else (row[0], row[1]) for row in rows]
    mixed = [row.parents if isinstance(row, MixedRow) else None for row in rows]
    return replace(match, rows=places, parents=mixed)
