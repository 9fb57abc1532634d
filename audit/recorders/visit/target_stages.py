"""Which repeated stages made the label of a sample, and not the model's input."""

from __future__ import annotations

from typing import Any

from audit.recorders.calls.data_values import find_leading_stages, ids_in
from audit.recorders.visit.repeated_call import RepeatedCall
from audit.recorders.visit.visit_stages import VisitStages

#: By ordinal, the ids of what a stage was given, and what it returned.
PassedValues = dict[int, tuple[set[int], Any]]


def mark_repeated_targets(stages: VisitStages, passed: PassedValues, item_input: Any, others: Any) -> None:
    """Mark repeated stages that led to the label and not to the input, as a transform of picture and mask does."""
    values = [(ordinal, *pair) for ordinal, pair in reversed(passed.items())]
    main = find_leading_stages(values, ids_in(item_input))
    side = find_leading_stages(values, ids_in(others), alone=True)
    for ordinal, what in stages.added.items():
        if isinstance(what, RepeatedCall) and ordinal in side and ordinal not in main:
            what.is_target = True
