"""The rows of `parents`: which samples a place in a batch was mixed from, as observed or as the user said."""

from __future__ import annotations

import os
import threading
from typing import Any

from audit.recorders.envelope import Weights
from audit.recorders.model import mixing
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

    def take_rows(self, batch: UnpredictedBatch | None, count: int | None = None) -> list[BatchRows]:
        """Return the mixes since the last call as rows of this batch, if they are of as many samples."""
        with self._lock:
            mixes, self._mixes = self._mixes, []
        if not mixes or batch is None:
            return []
        weights = mixing.weights(mixes, len(batch.indices) if count is None else count)
        return self.rows_of(batch, weights) if weights is not None else []

    def rows_of(self, batch: UnpredictedBatch, weights: Weights) -> list[BatchRows]:
        """Return the rows of a batch each of whose places was mixed from these places of it."""
        if len(weights) != len(batch.indices):
            return []
        parents = [[(batch.indices[place], share) for place, share in pairs] for pairs in weights]
        return [self.make_rows(batch.epoch, batch.batches, batch.positions, parents)]

    def make_rows(
        self,
        epoch: int,
        batches: list[int | None],
        positions: list[int | None],
        parents: list[list[tuple[int, float]]],
    ) -> BatchRows:
        """Return the rows of places that were mixed from these samples: (index, weight) pairs for each place."""
        merged: dict[tuple[int | None, int | None, int], float] = {}
        for batch, position, pairs in zip(batches, positions, parents, strict=True):
            for index, share in pairs:
                merged[batch, position, index] = merged.get((batch, position, index), 0.0) + share
        columns: dict[str, list[Any]] = {
            "run_id": [self._run_id] * len(merged),
            "epoch": [epoch] * len(merged),
            "batch": [batch for batch, _, _ in merged],
            "position": [position for _, position, _ in merged],
            "parent_index": [index for _, _, index in merged],
            "weight": list(merged.values()),
        }
        return BatchRows(tables={"parents": wire.table_of("parents", columns)})
