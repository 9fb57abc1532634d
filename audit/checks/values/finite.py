"""`finite`: no NaN and no infinity, in any stage, in outputs of the model, in losses."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding
from audit.checks.context import Context


class Finite(Check):
    """Report the first stage at which a sample is not finite."""

    description = "No stage output, output of the model or loss is NaN or infinite; the first stage where one appears is reported."
    question = "Are values finite, not all at the end of their range, and as the configuration says?"
    rule = "recorded counts, minimum, maximum and mean before and after a stage, dtype and shape"

    def run(self, context: Context) -> Iterable[Finding]:
        if any(row["nonfinite"] for row in context.profile):
            yield from _outputs(context)
        if context.facts.counts.get("predictions"):
            yield from _predictions(context)


def _outputs(context: Context) -> Iterable[Finding]:
    query = (
        "SELECT epoch, index, visit, min(stage) AS stage, arg_min(nonfinite, stage) AS nonfinite "
        f"FROM {context.outputs} WHERE nonfinite > 0 GROUP BY epoch, index, visit"
    )
    for row in context.offenders_by_cause(query):
        yield Finding(
            f"{row['source']} (index {row['index']}): {row['nonfinite']:,} values are NaN or infinite "
            f"from {context.stage_name(row['stage'])} on." + _count_others(row["others"]),
            index=row["index"],
            source=row["source"],
            stage=row["stage"],
            value=row["nonfinite"],
            threshold=0,
            sql=f"FROM ({query}) WHERE stage = {row['stage']}"
            if row["others"]
            else context.evidence("stage_outputs", row["index"], "nonfinite > 0"),
        )


def _predictions(context: Context) -> Iterable[Finding]:
    query = (
        "SELECT epoch, index, visit, CASE WHEN NOT isfinite(list_sum(logits)) THEN 'logits are' "
        "WHEN NOT isfinite(list_sum(output)) THEN 'outputs are' WHEN NOT isfinite(loss) THEN 'loss is' END AS what "
        f"FROM {context.all_predictions} WHERE what IS NOT NULL"
    )
    for row in context.offenders_by_cause(query, "what", "false"):
        yield Finding(
            f"{row['source']} (index {row['index']}): its {row['what']} NaN or infinite."
            + _count_others(row["others"]),
            index=row["index"],
            source=row["source"],
            sql=query if row["others"] else context.evidence("predictions", row["index"]),
        )


def _count_others(others: int) -> str:
    return f" The same holds for {others:,} more." if others else ""
