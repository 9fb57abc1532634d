"""`dead_layers`: layers whose output is zero or constant for every input."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.store.sql_literal import literal


class DeadLayers(Check):
    """Check all recorded steps together: a layer that is zero in one step is not dead."""

    description = "Layers whose outputs are zero or constant in every recorded step, or whose gradients are all zero."
    question = "Does a layer give only zeros, or ever larger values?"
    rule = "recorded statistics of each step"
    assumes = "layers were recorded"
    needs = ("activations",)
    options = settings(
        zero_fraction=Option(0.999, "A layer is dead if at least this share of its values is zero in every step."),
        steps=Option(1, "Check only if at least this many steps were recorded."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        query = (
            "SELECT layer, direction, any_value(layer_type) AS layer_type, count(*) AS rows, "
            "min(zero_fraction) AS zeros, max(max - min) FILTER (coalesce(list_product(shape), 2) > 1) AS spread, "
            "max(max) - min(min) AS range "
            f"FROM {context.activations} WHERE port LIKE 'output%' OR direction = 'backward' "
            "GROUP BY layer, direction HAVING count(DISTINCT (epoch, step)) >= "
            f"{context.options['steps']} ORDER BY layer, direction"
        )
        for row in context.rows(query):
            zeros = row["zeros"]
            dead = zeros is not None and zeros >= context.options["zero_fraction"]
            # A layer with one output value has no spread within a row; it is constant if all rows are equal.
            spread = row["spread"] if row["spread"] is not None else row["range"] if row["rows"] > 1 else None
            constant = spread is not None and spread == 0
            if not dead and not constant:
                continue
            what = "gradients" if row["direction"] == "backward" else "outputs"
            said = f"at least {zeros:.1%} zero" if dead else "constant"
            yield Finding(
                f"The layer {row['layer']} ({row['layer_type']}) is dead: its {what} are {said} "
                f"in all {row['rows']:,} rows.",
                value=zeros,
                threshold=context.options["zero_fraction"],
                sql=f"FROM activations WHERE run_id = {context.run_literal} AND layer = {literal(row['layer'])} "
                f"AND direction = {literal(row['direction'])}",
            )
