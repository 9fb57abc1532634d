"""The rows of `parents`: which samples a place in a batch was mixed from, as observed or as the user said."""

from __future__ import annotations

import os
import threading
from typing import Any

from audit.recorders.envelope import Weights
from audit.recorders.model import mixing
from audit.recorders.model.step import ModelStep, Place
from audit.recorders.model.unpredicted_batch import BatchRows, UnpredictedBatch
from audit.store import wire


class MixRecorder:
    """Gathers the mixes made in the loop until it shows which batch they are of.

    That is known when the model is called, or when the next batch comes.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._mixes: list[mixing.Mix] = []
        mixing.subscribe(self._add)

    def close(self) -> None:
        """Stop to observe mixes."""
        mixing.unsubscribe(self._add)

    def _add(self, mix: mixing.Mix) -> None:
        # A forked worker has a copy of this object, whose mixes are never written.
        if os.getpid() == self._process:
            with self._lock:
                self._mixes.append(mix)

    def _take_weights(self, count: int) -> Weights | None:
        with self._lock:
            mixes, self._mixes = self._mixes, []
        return mixing.weights(mixes, count) if mixes else None

    def take_rows(self, batch: UnpredictedBatch | None) -> list[BatchRows]:
        """Return the mixes since the last call as rows of this batch, if they are of as many samples."""
        weights = self._take_weights(len(batch.indices) if batch is not None else 0)
        return self.rows_of(batch, weights) if batch is not None and weights is not None else []

    def take_step_rows(self, step: ModelStep) -> list[BatchRows]:
        """Return what each mixed row of a call was made of, with the weights where these were observed."""
        weights = self._take_weights(step.size)
        places, positions, parents = [], [], []
        for row, (batch, place) in enumerate(step.rows):
            mixed = step.parents[row]
            if mixed is None:
                continue
            shares = _shares(step, weights[step.inputs[row]]) if weights is not None else {}
            known = shares if shares.keys() == set(mixed) else {}
            places.append(batch.batches[place])
            positions.append(batch.positions[place])
            parents.append([(owner.indices[at], known.get((owner, at))) for owner, at in mixed])
        return [self.make_rows(step.epoch, places, positions, parents, number=step.call)]

    def rows_of(self, batch: UnpredictedBatch, weights: Weights) -> list[BatchRows]:
        """Return the rows of a batch each of whose places was mixed from these places of it."""
        if len(weights) != len(batch.indices):
            return []
        parents: list[list[tuple[int, float | None]]] = [
            [(batch.indices[place], share) for place, share in pairs] for pairs in weights
        ]
        return [self.make_rows(batch.epoch, batch.batches, batch.positions, parents)]

    def make_rows(
        self,
        epoch: int,
        batches: list[int | None],
        positions: list[int | None],
        parents: list[list[tuple[int, float | None]]],
        *,
        number: int | None = None,
    ) -> BatchRows:
        """Return the rows of places that were mixed from these samples: (index, weight) pairs for each place.

        `number` is the call for which they were mixed.
        """
        merged: dict[tuple[int | None, int | None, int], float | None] = {}
        for batch, position, pairs in zip(batches, positions, parents, strict=True):
            for index, share in pairs:
                before = merged.get((batch, position, index), 0.0)
                merged[batch, position, index] = None if before is None or share is None else before + share
        columns: dict[str, list[Any]] = {
            "run_id": [self._run_id] * len(merged),
            "epoch": [epoch] * len(merged),
            "batch": [batch for batch, _, _ in merged],
            "position": [position for _, position, _ in merged],
            "parent_index": [index for _, _, index in merged],
            "weight": list(merged.values()),
            "number": [number] * len(merged),
        }
        return BatchRows(tables={"parents": wire.table_of("parents", columns)})


def _shares(step: ModelStep, pairs: list[tuple[int, float]]) -> dict[Place, float]:
    """Return the share of each sample, where a mix took these rows of the model's input."""
    rows = dict(zip(step.inputs, step.rows, strict=True))
    found: dict[Place, float] = {}
    for number, share in pairs:
        if number in rows:
            found[rows[number]] = found.get(rows[number], 0.0) + share
    return found
