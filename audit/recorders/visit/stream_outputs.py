"""Which stage outputs of a stream belong to the item that it gives next.

A dataset without indexes may read ahead: it fills a buffer that it shuffles, or gathers batches. What its stages return while one
item is made may then be parts of later items. They are recorded for an item only if it holds them, or if nothing suggests that.
"""

from __future__ import annotations

from typing import Any

import torch

from audit.recorders.calls.data_values import ids_in
from audit.recorders.visit.visit import Visit


class StreamOutputs:
    """Judges the visits of one iteration over a dataset, in their order."""

    def __init__(self) -> None:
        self._reads_ahead = False

    def belong_to(self, item: Any, value: Any, visit: Visit) -> bool:
        """Return whether the outputs of a visit may be recorded for its item; `value` is the item's input."""
        passed = visit.passed_values()
        given = set().union(*(ids for ids, _ in passed))
        last = [output for _, output in passed if ids_in(output) and not ids_in(output) & given]
        held = ids_in(item)
        if all(ids_in(output) & held for output in last) or _are_rows(value, last):
            return True
        if visit.added_stages and visit.stages.has_repeated:
            self._reads_ahead = True
        return not self._reads_ahead


def _are_rows(value: Any, outputs: list[Any]) -> bool:
    """Return whether a tensor is made of these, one behind the other."""
    if not isinstance(value, torch.Tensor) or value.ndim == 0 or len(value) != len(outputs):
        return False
    return all(
        isinstance(output, torch.Tensor) and torch.equal(row, output)
        for row, output in zip(value, outputs, strict=True)
    )
