"""`odd_scale`: a few samples have values many times as large as all others, such as a row that was never scaled."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context, OutputProfile

#: The share of samples below the quantile that describes the usual spread, and its place in a normal distribution.
_QUANTILE, _PLACE = 0.95, 1.645
#: So many standard deviations of the logarithms lie between the median and what is odd: heavy tails are not.
_DEVIATIONS = 8
#: Factors by which formats differ: 8, 16, 24 and 32 bits instead of fractions. A group of samples has one of them, but for so much.
_SCALES, _NEAR = (255, 32_768, 65_535, 8_388_608, 2_147_483_648), 1.25
#: The least share of the samples that is a group, and how many samples are compared.
_LEAST_GROUP, _MOST_COMPARED = 0.03, 20_000


class OddScale(Check):
    """Compare the largest absolute value of each float tensor or array with the median and the 95 % quantile of its stage."""

    description = "No sample has values many times as large as nearly all others at the same stage, as one that was not scaled has."
    question = "Does a sample have values many times as large as all others?"
    statistic = (
        "the largest absolute value of each sample: 20 times the 95 % quantile of its stage, and 8 standard deviations "
        "of the logarithms above the median; of a larger group, a median 255 times that of the others, or another factor "
        "of a format of 16, 24 or 32 bits, and a gap that is wider than each group"
    )
    assumes = "at most 5 % are odd, or a group is not scaled"
    severity = "warning"
    options = settings(
        times=Option(20.0, "Report values that exceed the 95 % quantile this many times."),
        samples=Option(50, "Judge only stages with at least this many outputs."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        numbers = [row for row in context.profile if _is_float(row["kind"], row["dtype"])]
        if not numbers:
            raise Skip("no stage returned float tensors or arrays")
        times: float = context.options["times"]
        reported: set[tuple[int, int, int]] = set()
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
            if not reported and (group := _find_unscaled_group(context, stage, spans, usual["outputs"])) is not None:
                yield group
                return
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


def _find_unscaled_group(context: Context, stage: int, spans: str, outputs: int) -> Finding | None:
    """Return a finding if a part of the samples, and not only a few, has values larger by a factor that formats are scaled by."""
    every = -(-outputs // _MOST_COMPARED)
    rows = context.rows(
        f"SELECT epoch, index, visit, largest, split FROM ({spans}) JOIN (SELECT epoch, index, visit, split FROM {context.samples}) "
        f"USING (epoch, index, visit) WHERE index % {every} = 0 ORDER BY largest, index"
    )
    if len(rows) < context.options["samples"]:
        return None
    logs = np.log(np.array([row["largest"] for row in rows]))
    place = int(np.argmax(np.diff(logs))) + 1
    below, above = logs[:place], logs[place:]
    if min(len(below), len(above)) < _LEAST_GROUP * len(logs) or logs[place] - logs[place - 1] < max(
        map(_spread, (below, above))
    ):
        return None
    factor = float(np.exp(np.median(above) - np.median(below)))
    scale = next((one for one in _SCALES if 1 / _NEAR < factor / one < _NEAR), None)
    # Another scale of a whole split is what `split_scale` and `split_drift` report.
    if scale is None or not {row["split"] for row in rows[:place]} & {row["split"] for row in rows[place:]}:
        return None
    first = rows[place]
    (source,) = context.sources_of([(first["epoch"], first["index"], first["visit"])])
    return Finding(
        f"{len(above):,} of {len(logs):,} samples have values about {scale:,} times as large as the others after {context.stage_name(stage)}, such as "
        f"{source} (index {first['index']}, up to {first['largest']:.4g}; the largest of the others has {rows[place - 1]['largest']:.4g}): were "
        "they not scaled?",
        index=first["index"],
        source=source,
        stage=stage,
        value=factor,
        threshold=scale,
        sql=f"FROM ({spans}) WHERE largest > {rows[place - 1]['largest']} ORDER BY index",
    )


def _spread(logs: np.ndarray[Any, Any]) -> float:
    return float(np.quantile(logs, 0.95) - np.quantile(logs, 0.05))


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
