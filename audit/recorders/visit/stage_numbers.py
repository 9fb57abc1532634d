"""The ordinals of the stages of one batch: within a visit they grow from stage to stage.

So the largest ordinal of a visit is its last stage on the way to the model. Visits of one batch may take different ways:
a stage that only some of them run stands between those that all run. Where two visits run the same stages in different
orders, a stage gets several ordinals with one path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from audit.recorders.visit.visit_stages import FIRST_INSIDE_NUMBER
from audit.records import Columns, Stage


class StageIds:
    """Numbers the stages that are not known before a visit. Every process has its own numbers, from INSIDE on."""

    def __init__(self) -> None:
        self._ids: dict[tuple[object, ...], int] = {}
        self._stages: list[Stage] = []

    def number(self, stage: Stage) -> int:
        """Return the number of a stage, the same for the same description."""
        key = (stage.path, stage.qualname, stage.parameters, stage.source_code_digest)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = FIRST_INSIDE_NUMBER + len(self._stages)
            self._stages.append(stage)
        return found

    def stage(self, number: int) -> Stage:
        """Return the stage that has a number."""
        return self._stages[number - FIRST_INSIDE_NUMBER]


def order_stages(known: int, routes: Sequence[Sequence[int]]) -> list[int]:
    """Return all stages of a batch in an order that fits as many of its visits as possible.

    The first `known` are the stages of the pipeline; a route lists the stages that one visit ran.
    """
    order = list(range(known))
    for route in dict.fromkeys(map(tuple, routes)):
        at = -1
        for stage in route:
            if stage in order:
                at = max(at, order.index(stage))
            else:
                at += 1
                order.insert(at, stage)
    return order


def number_batch(known: int, routes: Sequence[Sequence[int]]) -> tuple[list[int], list[dict[int, int]]]:
    """Return the stages by ordinal, and for each visit the ordinal of each of its stages."""
    order = order_stages(known, routes)
    places: dict[int, list[int]] = {stage: [place] for place, stage in enumerate(order)}
    numbered: list[dict[int, int]] = []
    for route in routes:
        last, given = -1, {stage: taken[0] for stage, taken in places.items()}
        for stage in route:
            number = next((place for place in places[stage] if place > last), None)
            if number is None:
                number = len(order)
                order.append(stage)
                places[stage].append(number)
            given[stage] = last = number
        numbered.append(given)
    return order, numbered


def renumber(columns: Columns, numbered: Sequence[Mapping[int, int]]) -> None:
    """Give the rows of a batch their ordinals, by their place in the batch."""
    stages = columns.data["stage"]
    for row, position in enumerate(columns.data["position"]):
        stages[row] = numbered[position][stages[row]]
