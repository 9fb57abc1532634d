"""`exploding_layers`: activations or gradients that are not finite, very large, or grow strongly."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.store.sql_literal import literal


class ExplodingLayers(Check):
    """Report each layer with the first step at which it explodes."""

    description = "Layers whose activations or gradients are NaN, infinite, very large, or have grown strongly."
    needs = ("activations",)
    options = settings(
        largest=Option(1e5, "Values beyond this are very large."),
        growth=Option(1e4, "The spread of the last step may be this many times that of the first."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        largest, growth = context.options["largest"], context.options["growth"]
        size = "greatest(abs(min), abs(max))"
        query = (
            f"SELECT layer, direction, sum(nonfinite) AS nonfinite, max({size}) AS largest, "
            f"min(step) FILTER (nonfinite > 0 OR {size} > {largest}) AS step, "
            "arg_min(std, (epoch, step)) AS std_first, arg_max(std, (epoch, step)) AS std_last "
            f"FROM {context.activations} GROUP BY layer, direction ORDER BY step NULLS LAST, layer"
        )
        for row in context.rows(query):
            grown = (row["std_last"] or 0) / row["std_first"] if row["std_first"] else 0.0
            what = "gradients" if row["direction"] == "backward" else "values"
            if row["nonfinite"]:
                said, value, limit = f"{row['nonfinite']:,} {what} are NaN or infinite", float(row["nonfinite"]), 0.0
            elif row["largest"] is not None and row["largest"] > largest:
                said, value, limit = f"{what} reach {row['largest']:.3g}", row["largest"], largest
            elif grown > growth:
                said, value, limit = f"the spread of its {what} grew {grown:.3g} times", grown, growth
            else:
                continue
            since = f" from step {row['step']} on" if row["step"] is not None else ""
            yield Finding(
                f"The layer {row['layer']} explodes{since}: {said}.",
                value=value,
                threshold=limit,
                sql=f"FROM activations WHERE run_id = {context.run_literal} AND layer = {literal(row['layer'])} "
                f"AND direction = {literal(row['direction'])} ORDER BY epoch, step",
            )
