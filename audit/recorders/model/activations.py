"""The rows of `activations` that a step's policies keep, once its loss is known."""

from __future__ import annotations

from typing import Any

from audit import values
from audit.recorders.model.layers import LayerHooks, LayerReading
from audit.recorders.model.step import ModelStep
from audit.store import wire as batch


def activation_table(step: ModelStep) -> Any:
    """Return a table of `activations`; None when nothing is kept."""
    chosen: dict[int, list[bool]] = {}
    found: list[dict[str, Any]] = []
    for hooks, seen in step.seen:
        if id(hooks) not in chosen:
            chosen[id(hooks)] = _choose_rows(step, hooks)
        found.extend(_rows(step, hooks, seen, chosen[id(hooks)]))
    if not found:
        return None
    names = {name for row in found for name in row}
    return batch.table_of("activations", {name: [row.get(name) for row in found] for name in names})


def _rows(step: ModelStep, hooks: LayerHooks, seen: LayerReading, chosen: list[bool]) -> list[dict[str, Any]]:
    found = []
    mixed = step.mixed_rows
    for number, row in enumerate(seen.rows):
        place = seen.places[number] if seen.places is not None else None
        owner = None if place is None or mixed[place] else place
        if not (any(chosen) if place is None else chosen[place]):
            continue
        found.append(
            row
            | _keep_value(hooks, seen, number)
            | {
                "run_id": step.run_id,
                "epoch": step.epoch,
                "step": step.number,
                "index": step.columns["index"][owner] if owner is not None else None,
                "visit": step.columns["visit"][owner] if owner is not None else None,
                "layer": seen.layer,
                "layer_type": seen.layer_type,
                "direction": seen.direction,
                "port": seen.port,
            }
        )
    return found


def _keep_value(hooks: LayerHooks, seen: LayerReading, number: int) -> dict[str, Any]:
    if seen.values is None:
        return {}
    value = seen.values[number]
    kept: dict[str, Any] = {"digest": values.digest(value)}
    if hooks.spent < hooks.policy.budget:
        _, encoded = values.encode(value)
        if hooks.spent + len(encoded.data) <= hooks.policy.budget:
            kept["payload"] = encoded.data
        hooks.spent += len(encoded.data)
    return kept


def _choose_rows(step: ModelStep, hooks: LayerHooks) -> list[bool]:
    """Return which rows of the step the policy wants."""
    policy, columns, count = hooks.policy, step.columns, len(step.rows)
    chosen = [policy.indices is None or index in policy.indices for index in columns["index"]]
    if policy.when is None:
        return chosen
    if "logits" not in columns:
        # No prediction, so no condition over it can be met.
        return [False] * count
    if callable(policy.when):
        each = [{name: column[place] for name, column in columns.items()} for place in range(count)]
        return [kept and bool(policy.when(row)) for kept, row in zip(chosen, each, strict=True)]
    assert hooks.condition is not None
    met = hooks.condition.places(batch.table_of("predictions", columns))
    return [kept and place in met for place, kept in enumerate(chosen)]
