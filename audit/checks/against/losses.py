"""`losses`: the same samples have higher losses than in the baseline, though their predictions may be the same."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypedDict

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.significance import signed_rank
from audit.store.sql_literal import literal


class RankSums(TypedDict):
    """The sums of Wilcoxon's signed-rank test, and the mean losses."""

    pairs: int
    different: int
    higher: int
    upper: float | None
    ties: float | None
    before: float | None
    now: float | None


class Losses(Check):
    """Test the differences of paired losses with Wilcoxon's signed-rank test: few large losses do not decide it."""

    description = "The losses of the same samples are not systematically higher than in the baseline run (Wilcoxon)."
    question = "Are the same samples' losses higher than in the baseline?"
    statistic = "Wilcoxon's signed-rank test, with an effect of at least 0.2"
    assumes = "differences are symmetric if nothing changed"
    severity = "warning"
    follows = ("pipeline_changed", "accuracy")
    needs = ("model", "labels", "same_labels", "baseline")
    options = settings(
        significance=Option(0.001, "Report a change only if its probability under chance alone is below this."),
        effect=Option(0.2, "Report it only if higher differences outweigh lower ones by this share of all ranks."),
        rise=Option(0.05, "Report it only if the mean loss is higher by this share."),
        samples=Option(30, "Compare only if at least this many samples are in both runs."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        baseline = context.facts.baseline
        assert baseline is not None
        if baseline.reader is None:
            raise Skip("a baseline file does not store losses; pass a run of the store with --baseline")
        query = _query(context, baseline.run_id)
        row = context.reader.sql(query, run=[context.run.run_id, baseline.run_id]).rows(RankSums)[0]
        if row["pairs"] < context.options["samples"]:
            raise Skip(
                f"{row['pairs']} samples have a loss in both runs; at least {context.options['samples']} are needed"
            )
        n, upper = row["different"], row["upper"] or 0.0
        if n < 10 or row["before"] is None or row["now"] is None:
            return
        chance, effect = signed_rank(n, upper, row["ties"] or 0.0)
        rise = row["now"] / row["before"] - 1 if row["before"] else math.inf
        context.note(f"the mean loss is {row['now']:.4g}, and was {row['before']:.4g}")
        options = context.options
        if chance < options["significance"] and effect >= options["effect"] and rise >= options["rise"]:
            yield Finding(
                f"The loss is higher than in {baseline.name} for {row['higher']:,} of {row['pairs']:,} samples: "
                f"the mean is {row['now']:.4g}, and was {row['before']:.4g} (Wilcoxon's test: p {chance:.2g}).",
                value=row["now"],
                threshold=row["before"],
                sql=query,
            )


def _query(context: Context, before: str) -> str:
    now = (
        "SELECT s.source, avg(p.loss) AS loss FROM "
        f"{context.predictions} p JOIN {context.samples} s USING (epoch, index, visit) "
        "WHERE isfinite(p.loss) GROUP BY s.source"
    )
    old = (
        "SELECT source, arg_max(loss, (epoch, -visit)) AS loss FROM lineage "
        f"WHERE run_id = {literal(before)} AND isfinite(loss) GROUP BY source"
    )
    both = f"SELECT n.loss - o.loss AS d, n.loss AS now, o.loss AS before FROM ({now}) n JOIN ({old}) o USING (source)"
    ranked = (
        "SELECT d, rank() OVER (ORDER BY abs(d)) AS first, count(*) OVER (PARTITION BY abs(d)) AS equal "
        "FROM paired WHERE d <> 0"
    )
    return (
        f"WITH paired AS MATERIALIZED ({both}), ranked AS ({ranked}) "
        "SELECT (SELECT count(*) FROM paired) AS pairs, count(*) AS different, count(*) FILTER (d > 0) AS higher, "
        "sum(first + (equal - 1) / 2) FILTER (d > 0)::DOUBLE AS upper, sum(equal * equal - 1)::DOUBLE AS ties, "
        "(SELECT avg(before) FROM paired) AS before, (SELECT avg(now) FROM paired) AS now FROM ranked"
    )
