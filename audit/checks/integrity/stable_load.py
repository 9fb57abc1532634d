"""`stable_load`: a sample loads to another value at a later visit, although its source is the same."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Skip
from audit.checks.context import Context


class StableLoad(Check):
    """Find samples that a stage changed in place in memory. Random loading is not checked."""

    description = "A sample loads to the same value at every visit, unless it draws random numbers."

    def run(self, context: Context) -> Iterable[Finding]:
        if context.facts.once:
            raise Skip("no sample was visited twice")
        stage = next((stage for stage in context.facts.stages if stage.stage == 0), None)
        if stage is None or stage.random:
            raise Skip("loading is random, or was not recorded")
        query = (
            "SELECT index, source, count(DISTINCT digest) AS different, count(*) AS visits, "
            "min(epoch) AS first, max(epoch) AS last "
            f"FROM (SELECT epoch, index, visit, digest FROM {context.outputs} WHERE stage = 0) "
            f"JOIN (SELECT epoch, index, visit, split, source, source_digest FROM {context.samples}) "
            "USING (epoch, index, visit) "
            # A visit that drew random numbers may have drawn them while it loaded.
            f"ANTI JOIN (SELECT epoch, index, visit FROM rng WHERE run_id = {context.run_literal}) "
            "USING (epoch, index, visit) "
            "GROUP BY split, index, source, source_digest HAVING count(DISTINCT digest) > 1"
        )
        for row in context.offenders(query):
            yield Finding(
                f"{row['source']} (index {row['index']}) was loaded {row['visits']} times and gave {row['different']} "
                "different values, without drawing random numbers: a stage may change it in place.",
                index=row["index"],
                source=row["source"],
                stage=0,
                value=row["different"],
                threshold=1,
                sql=context.evidence("stage_outputs", row["index"], "stage = 0"),
            )
