"""`reproducible`: replaying a few visits gives the digests that were recorded."""

from __future__ import annotations

import os
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.errors import DatasetError, ModelError, PipelineError, UsageError
from audit.sources.builder import can_be_rebuilt
from audit.sources.trust import is_derivable


class Reproducible(Check):
    """Run the pipeline again on a few visits spread over the run. The only check that needs torch."""

    description = "Replaying a few visits from their sources gives exactly the recorded stage outputs."
    question = "Can stage outputs be derived again?"
    rule = "3 visits, spread over the run, are replayed, and digests are compared"
    assumes = "the pipeline's code is at hand"
    imports_torch = True
    options = settings(visits=Option(3, "Replay this many samples, evenly chosen."))

    def prepare(self, context: Context) -> None:
        self._look_for_parts(context)
        if not is_derivable(context.run, context.facts.trust):
            raise Skip(
                "replaying would execute code that this machine did not record, or that has changed since; "
                "pass --trust to allow it, or run `audit replay`"
            )

    def run(self, context: Context) -> Iterable[Finding]:
        self.prepare(context)
        indices = self._choose(context)
        if not indices:
            raise Skip("no visit succeeded")
        from audit.lineage.replay.replay import replay
        from audit.lineage.replay.replayer import ReplayOptions

        try:
            replayed = replay(
                context.reader,
                context.run.run_id,
                wanted=ReplayOptions(indices=indices, workers=0, trust=context.facts.trust),
            )
        except (UsageError, DatasetError, PipelineError, ModelError) as error:
            raise Skip(f"the pipeline cannot be rebuilt: {error.message}") from error
        context.note(f"{replayed.checked} visits replayed")
        for row in sorted(replayed.different, key=lambda row: row.reason.startswith("source ")):
            yield Finding(
                f"{row.source} (index {row.index}) gives another output than was recorded, from {row.name} on: "
                f"{row.reason}{f' ({row.detail})' if row.detail else ''}.",
                index=row.index,
                source=row.source,
                stage=row.stage,
                value=row.max_abs_diff,
                threshold=0,
                sql=context.evidence("stage_outputs", row.index, f"epoch = {row.epoch} AND visit = {row.visit}"),
                causes=("source_unchanged",) if row.reason.startswith("source ") else (),
            )

    def _look_for_parts(self, context: Context) -> None:
        """Skip the check if the dataset or model is missing, before torch is imported."""
        if not can_be_rebuilt(context.run.recipe):
            raise Skip(
                "the run was recorded in a user's own loop; name the code that builds its dataset with run.loader(…, builder=…), "
                "or replay it with the dataset: store.replay(dataset=…)"
            )
        for part in ("dataset", "pipeline", "model"):
            path = str(context.run.recipe.get(part) or "")
            file = path.rpartition(":")[0] or path
            if os.path.isabs(path) and not os.path.exists(path) and not os.path.exists(file):
                raise Skip(f"the {part} no longer exists, so nothing can be replayed")

    def _choose(self, context: Context) -> list[int]:
        wanted = max(1, context.options["visits"])
        rows = context.rows(
            "SELECT index FROM (SELECT index, row_number() OVER (ORDER BY index) - 1 AS place, "
            f"count(*) OVER () AS total FROM (SELECT DISTINCT index FROM {context.samples} WHERE status = 'ok')) "
            f"WHERE place % greatest(1, total // {wanted}) = 0 ORDER BY place LIMIT {wanted}"
        )
        return [row["index"] for row in rows]
