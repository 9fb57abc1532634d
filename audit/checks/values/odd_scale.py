"""`odd_scale`: a few samples have values many times as large as all others, such as a row that was never scaled."""

from __future__ import annotations

import math
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context, OutputProfile

#: The share of samples below the quantile that describes the usual spread, and its place in a normal distribution.
_QUANTILE, _PLACE = 0.95, 1.645
#: So many standard deviations of the logarithms lie between the median and what is odd: heavy tails are not.
_DEVIATIONS = 8


class OddScale(Check):
    """Compare the largest absolute value of each float tensor or array with the median and the 95 % quantile of its stage."""

    description = "No sample has values many times as large as nearly all others at the same stage, as one that was not scaled has."
    question = "Does a sample have values many times as large as all others?"
    statistic = (
        "the largest absolute value of each sample: 20 times the 95 % quantile of its stage, and 8 standard deviations "
        "of the logarithms above the median"
    )
    assumes = "at most 5 % are odd"
    severity = "warning"
    options = settings(
        times=Option(20.0, "Report values that exceed the 95 % quantile this many times."),
        samples=Option(50, "Judge only stages with at least this many outputs."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        numbers = [row for row in context.profile if _is_float(row["kind"], row["dtype"])]
        if not numbers:
            raise Skip("no stage returned float tensors or arrays")
        times, reported = context.options["times"], set()
        most = max(row["visits"] for row in numbers)
        if most < context.options["samples"]:
            raise Skip(f"a stage has {most} outputs; at least {context.options['samples']} are needed")
        for stage in sorted({row["stage"] for row in numbers if _may_be_odd(row, times)}):
            spans = (
                "SELECT epoch, index, visit, greatest(abs(min), abs(max)) AS largest "
                f"FROM {context.outputs} WHERE stage = {stage} AND kind IN ('tensor', 'array') AND dtype LIKE 'float%' "
                "AND isfinite(min) AND isfinite(max) AND greatest(abs(min), abs(max)) > 0"
            )
            (usual,) = context.rows(
                f"SELECT count(*) AS outputs, quantile_cont(largest, 0.5) AS middle, quantile_cont(largest, {_QUANTILE}) AS high FROM ({spans})"
            )
            if usual["outputs"] < context.options["samples"]:
                continue
            middle, high = usual["middle"], usual["high"]
            limit = find_limit(middle, high, times)
            for row in context.offenders(f"FROM ({spans}) WHERE largest > {limit}", order="largest DESC, index"):
                if (row["epoch"], row["index"], row["visit"]) in reported:
                    continue
                reported.add((row["epoch"], row["index"], row["visit"]))
                yield Finding(
                    f"{row['source']} (index {row['index']}) has values up to {row['largest']:.4g} after {context.stage_name(stage)}, where the "
                    f"median of all samples is {middle:.4g} and 95 % stay below {high:.4g}: was it not scaled like the others?",
                    index=row["index"],
                    source=row["source"],
                    stage=stage,
                    value=row["largest"],
                    threshold=limit,
                    sql=context.evidence("stage_outputs", row["index"], f"stage = {stage}"),
                )


def find_limit(middle: float, high: float, times: float) -> float:
    """Return what no sample should exceed, by the median and the 95 % quantile of the largest values."""
    return max(times * high, middle * math.exp(min(700, _DEVIATIONS * math.log(high / middle) / _PLACE)))


def _is_float(kind: str, dtype: str | None) -> bool:
    return kind in ("tensor", "array") and str(dtype).startswith("float")


def _may_be_odd(row: OutputProfile, times: float) -> bool:
    """Return whether the extremes of a stage are so far from the medians that some sample may be odd: mostly no query is needed."""
    if row["low"] is None or row["high"] is None or row["middle_min"] is None or row["middle_max"] is None:
        return False
    usual = max(abs(row["middle_min"]), abs(row["middle_max"]))
    # Not finite numbers say nothing about the others.
    return not max(abs(row["low"]), abs(row["high"])) <= times * usual
