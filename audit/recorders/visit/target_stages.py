"""Which repeated stages made the label of a sample, and not the model's input."""

from __future__ import annotations

from typing import Any

from audit.recorders.calls.data_values import ids_in
from audit.recorders.visit.repeated_call import RepeatedCall
from audit.recorders.visit.visit_stages import VisitStages

#: By ordinal, the ids of what a stage was given, and what it returned.
PassedValues = dict[int, tuple[set[int], Any]]


def mark_repeated_targets(stages: VisitStages, passed: PassedValues, item_input: Any, others: Any) -> None:
    """Mark repeated stages that led to the label and not to the input, as a transform of picture and mask does."""
    main, side = _leading_to(ids_in(item_input), passed), _leading_to(ids_in(others), passed)
    for ordinal, what in stages.added.items():
        if isinstance(what, RepeatedCall) and ordinal in side and ordinal not in main:
            what.is_target = True


def _leading_to(wanted: set[int], passed: PassedValues) -> set[int]:
    found: set[int] = set()
    for ordinal, (given, output) in reversed(passed.items()):
        if ids_in(output) & wanted:
            found.add(ordinal)
            wanted = wanted | given
    return found
