"""Stages that a random container was seen to skip."""

from __future__ import annotations

from audit.recorders.stages.call_parameters import NOT_FIRED
from audit.recorders.stages.discover import Pipeline
from audit.recorders.visit.stage_row import Row


def add_skipped_stages(pipeline: Pipeline, rows: dict[int, Row]) -> None:
    """Add a row for each stage that a random container skipped: its value is that of the stage before.

    For any other stage without a row it is unknown whether it ran, and no row is added.
    """
    skipped = _find_skipped(pipeline, rows)
    before = {False: rows.get(0), True: None}
    for step in pipeline.steps[1:]:
        ordinal, is_target = step.stage.stage, step.stage.is_target
        row = rows.get(ordinal)
        if row is None and ordinal in skipped and (last := before[is_target]) is not None:
            row = Row(last.facts, False, NOT_FIRED, 0.0)
            row.preview, row.full, row.shared, row.target = last.preview, last.full, True, last.target
            rows[ordinal] = row
        before[is_target] = row or before[is_target]


def _find_skipped(pipeline: Pipeline, rows: dict[int, Row]) -> set[int]:
    """Return the stages below containers that ran without calling them."""
    found: set[int] = set()
    for step in pipeline.steps:
        own = rows.get(step.stage.stage) if step.children else None
        if own is None:
            continue
        below = {ordinal for child in step.children for ordinal in child}
        # A container that changed its value, though no stage below it was seen, called them in a way of its own.
        if not own.changed or any(ordinal in rows for ordinal in below):
            found |= below
    return found
