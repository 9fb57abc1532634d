"""`hooks`: every requested layer was recorded in every recorded step."""

from __future__ import annotations

import re
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Skip
from audit.checks.context import Context
from audit.store.sql_literal import literal

_SILENT = re.compile(r"hook on layer (.+) never fired")


class Hooks(Check):
    """Find hooks that did not run: compilation or data parallelism can drop them silently."""

    description = "The hook of every requested layer ran in every recorded step."
    question = "Did the hook of every layer run in every step?"
    rule = "recorded rows of each layer are counted"
    assumes = "layers were recorded"

    def run(self, context: Context) -> Iterable[Finding]:
        asked = [str(layer) for layer in context.run.recipe.get("layers") or ()]
        # The recording itself warns about hooks that never ran.
        asked += [found[1] for warning in context.run.warnings if (found := _SILENT.search(warning))]
        if not asked and not context.facts.counts.get("activations"):
            raise Skip("no layers were requested")
        rows = context.rows(
            f"SELECT layer, direction, count(DISTINCT (epoch, step)) AS steps FROM {context.activations} "
            "GROUP BY layer, direction ORDER BY layer, direction"
        )
        recorded = {row["layer"] for row in rows}
        for layer in dict.fromkeys(asked):
            if layer not in recorded:
                yield Finding(
                    f"The layer {layer} was requested, but its hook never ran.",
                    value=0,
                    sql=f"FROM activations WHERE run_id = {context.run_literal} AND layer = {literal(layer)}",
                )
        most = {way: max(r["steps"] for r in rows if r["direction"] == way) for way in {r["direction"] for r in rows}}
        for row in rows:
            if row["steps"] < most[row["direction"]]:
                yield Finding(
                    f"The layer {row['layer']} fired {row['direction']} in {row['steps']:,} of "
                    f"{most[row['direction']]:,} recorded steps.",
                    # A second model, or a head that only training uses, correctly has fewer steps.
                    severity="warning",
                    value=row["steps"],
                    threshold=most[row["direction"]],
                    sql=f"SELECT DISTINCT epoch, step FROM activations WHERE run_id = {context.run_literal} "
                    f"AND layer = {literal(row['layer'])} AND direction = {literal(row['direction'])}",
                )
