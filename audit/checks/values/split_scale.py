"""`split_scale`: a split is prepared on another scale than the others, such as with another mean and std."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.files import spread_evenly

#: At most this many samples are compared.
_MOST = 20_000


class ScaleOfSplit(TypedDict):
    """How the last stage of a split changes pictures: medians over its samples."""

    split: str
    stage: int
    samples: int
    factor: float | None
    shift: float
    mean: float
    std: float


class SplitScale(Check):
    """Compare how the pipelines of the splits change the values of a sample: by which factor, and by how much."""

    description = "The pipelines of all splits bring pictures to the same scale: values are multiplied by the same factor and shifted by as much."
    question = "Are all splits prepared on the same scale?"
    statistic = (
        "none: the median over the samples of the factor (spread of the last stage by that of the loaded picture) and "
        "of the shift; they differ by a factor of 1.5, or by 0.75 standard deviations"
    )
    assumes = "random stages change the values of single samples, and not the median"
    severity = "warning"
    options = settings(
        factor=Option(1.5, "Report a split whose values are multiplied by a factor that differs by at least this."),
        shift=Option(0.75, "Report a split whose values are shifted by at least this many standard deviations more."),
        samples=Option(30, "Compare only splits with at least this many samples."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        if len(context.pipelines) < 2:
            raise Skip("all samples go through the same stages")
        query = self._query(context)
        found = context.facts.typed_rows(ScaleOfSplit, query)
        rows = [row for row in found if row["samples"] >= context.options["samples"]]
        if len({row["split"] for row in rows}) < 2:
            raise Skip(
                f"fewer than two splits have at least {context.options['samples']} samples whose last stage returned numbers"
            )
        rows.sort(key=lambda row: -row["samples"])
        for row in rows[1:]:
            yield from self._compare(context, rows[0], row, query)

    def _compare(self, context: Context, one: ScaleOfSplit, other: ScaleOfSplit, query: str) -> Iterable[Finding]:
        if not one["factor"] or not other["factor"]:
            return
        ratio = other["factor"] / one["factor"]
        apart = abs(other["shift"] - one["shift"]) / max(one["std"], other["std"], 1e-9)
        if 1 / context.options["factor"] < ratio < context.options["factor"] and apart < context.options["shift"]:
            return
        yield Finding(
            f"The pictures of the split {other['split']} reach the model on another scale than those of {one['split']}: the last stage "
            f"{context.stage_name(other['stage'])} gives a mean of {other['mean']:.3g} and a spread of {other['std']:.3g}, and {one['mean']:.3g} and "
            f"{one['std']:.3g} in {one['split']}, although the loaded pictures are alike. Do both pipelines normalise in the same way?",
            stage=other["stage"],
            value=ratio,
            threshold=context.options["factor"],
            sql=query,
        )

    def _query(self, context: Context) -> str:
        total = context.value(f"SELECT count(*) FROM {context.items} WHERE status = 'ok'")
        chosen = f" AND {spread_evenly(_MOST, total)}" if total > _MOST else ""
        last = ", ".join(str(number) for number in sorted(set(context.last_stages)))
        # The factor and the shift of each sample: their medians do not depend on what some samples draw.
        return (
            "SELECT s.split, o.stage, count(*) AS samples, median(o.std / l.std) AS factor, "
            "median(o.mean - l.mean * o.std / l.std) AS shift, median(o.mean) AS mean, median(o.std) AS std "
            f"FROM (FROM {context.items} WHERE status = 'ok' AND split IS NOT NULL{chosen}) s "
            f"JOIN (FROM {context.outputs} WHERE stage = 0 AND kind = 'image' AND std > 0) l USING (epoch, index, visit) "
            f"JOIN (FROM {context.outputs} WHERE stage IN ({last}) AND starts_with(dtype, 'float') AND isfinite(std)) o "
            "USING (epoch, index, visit) GROUP BY s.split, o.stage ORDER BY ALL"
        )
