"""The rows of `parents`: which samples a place in a batch was mixed from, as heard or as told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from audit.recorders.envelope import Weights
from audit.recorders.model import mixing
from audit.recorders.model.match import UnpredictedBatch
from audit.store import wire as tables


class MixRecorder:
    """Mixes made in the loop wait here until it shows whose they are: when the model is called, or the next batch comes."""

    def __init__(self, run_id: str, submit: Callable[[dict[str, Any]], None]) -> None:
        self._run_id = run_id
        self._submit = submit
        self._mixes: list[mixing.Mix] = []

    def heard(self, mix: mixing.Mix) -> None:
        """A batch was mixed in the loop."""
        self._mixes.append(mix)

    def settle(self, pending: UnpredictedBatch | None, count: int | None = None) -> None:
        """What was heard belongs to this batch, if the number of samples is right."""
        mixes, self._mixes = self._mixes, []
        if mixes and pending is not None:
            weights = mixing.weights(mixes, len(pending.indices) if count is None else count)
            if weights is not None:
                self.mixed(pending, weights)

    def mixed(self, pending: UnpredictedBatch, weights: Weights) -> None:
        """Each place of a batch was mixed from these places of it."""
        if len(weights) == len(pending.indices):
            named = [[(pending.indices[place], share) for place, share in pairs] for pairs in weights]
            self.write(pending.epoch, pending.batches, pending.positions, named)

    def write(
        self,
        epoch: int,
        batches: list[int | None],
        positions: list[int | None],
        weights: list[list[tuple[int, float]]],
    ) -> None:
        """For each place, the indices of the samples it was mixed from with their weights."""
        merged: dict[tuple[int | None, int | None, int], float] = {}
        for batch, position, pairs in zip(batches, positions, weights, strict=True):
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
        self._submit({"parents": tables.table_of("parents", columns)})
