"""`blank`: outputs whose values are all equal, and the stage that made them so."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import GRIDS, Context


class Blank(Check):
    """Report constant outputs with the first stage where they are constant."""

    description = "Pictures and tensors whose values are all equal; the stage that made them so is reported."
    options = settings(elements=Option(16, "Check only outputs with at least this many values."))

    def run(self, context: Context) -> Iterable[Finding]:
        if not any(row["constant"] for row in context.profile if row["kind"] in ("image", "tensor", "array")):
            return
        query = (
            "SELECT index, epoch, visit, min(stage) AS stage, arg_min(min, stage) AS value "
            f"FROM {context.outputs} WHERE min = max AND kind IN {GRIDS} "
            f"AND list_product(shape) >= {context.options['elements']} GROUP BY epoch, index, visit"
        )
        for row in context.offenders(query):
            made = "was blank when it was loaded" if row["stage"] == 0 else (
                f"was made blank by {context.stage_name(row['stage'])}"
            )  # fmt: skip
            yield Finding(
                f"{row['source']} (index {row['index']}) {made}: every value is {row['value']:.4g}.",
                index=row["index"],
                source=row["source"],
                stage=row["stage"],
                value=row["value"],
                sql=context.evidence("stage_outputs", row["index"], "min = max"),
            )
