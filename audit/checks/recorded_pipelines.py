"""Which stages a sample went through, where the loaders of one run have several pipelines.

A stage that two pipelines have at the same place, with the same settings, is one stage: the second pipeline is not what
was added to the list of stages with it. So the stages of single visits are looked up.
"""

from __future__ import annotations

import math
from typing import TypedDict

from audit.checks.shared_facts import RunFacts
from audit.records import Stage
from audit.store.sql_literal import literal

#: The stages of so many visits of each split are looked up, spread over it.
_VISITS = 16


class StagesOfVisit(TypedDict):
    """The stages that one visit went through."""

    stages: list[int]


def recorded_pipelines(facts: RunFacts, stages: list[Stage]) -> list[list[Stage]]:
    """Return the pipelines, each with its stages in order; those that visits passed, or else as the stages were listed."""
    run = f"run_id = {literal(facts.run.run_id)}"
    some = (
        f"SELECT epoch, index, visit FROM samples WHERE {run} AND status = 'ok' "
        f"QUALIFY row_number() OVER (PARTITION BY split ORDER BY hash(index)) <= {_VISITS}"
    )
    rows = facts.typed_rows(
        StagesOfVisit,
        f"SELECT DISTINCT list_sort(list(DISTINCT stage)) AS stages FROM stage_outputs WHERE {run} AND (epoch, index, visit) IN "
        f"(SELECT (epoch, index, visit) FROM ({some})) GROUP BY epoch, index, visit ORDER BY ALL",
    )
    found = [set(row["stages"]) for row in rows]
    # If visits call different stages, only sets that are part of no other set are kept.
    whole = [one for one in found if not any(one < other for other in found)]
    by_number = {stage.stage: stage for stage in stages}
    ordered = [_sort_stages([by_number[number] for number in one if number in by_number]) for one in whole]
    return sorted((one for one in ordered if one), key=lambda one: [stage.stage for stage in one]) or _split_pipelines(
        stages
    )


def _sort_stages(stages: list[Stage]) -> list[Stage]:
    """Return the stages of one visit by their places in the pipeline; those found by their calls by number."""
    if all(part.isdecimal() for stage in stages for part in stage.path.split(".")):
        # A container is a stage after its children.
        return sorted(stages, key=lambda stage: [*map(int, stage.path.split(".")), math.inf])
    return sorted(stages, key=lambda stage: stage.stage)


def _split_pipelines(stages: list[Stage]) -> list[list[Stage]]:
    """Return one list for each time that the places of the stages begin again; all have `load`."""
    found: list[list[Stage]] = []
    seen: set[str] = set()
    for stage in stages:
        if stage.path in seen or not found:
            found.append([found[0][0]] if found and stage.stage else [])
            seen = set()
        seen.add(stage.path)
        found[-1].append(stage)
    return found
