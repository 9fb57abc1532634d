"""`repeated_draws`: several visits used the same generator state, and so the same random numbers."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.random_draws import find_drawn_generators


class RepeatedDraws(Check):
    """Compare the generator states that visits drew from: two states are never equal by chance."""

    description = "No two visits drew from the same state of a random generator, in any worker or epoch."
    question = "Do workers or epochs draw the same numbers?"
    rule = (
        "visits whose generator had the state of another visit, at least 5 % of all; two states are never equal by "
        "chance; torch's state counts for nothing where the visit asked for its worker, because it is then kept "
        "without a draw, or where the next visit of the batch begins with it"
    )
    follows = ("augmentation",)
    options = settings(
        share=Option(
            0.05, "Report a generator if at least this share of the visits repeats the state of another visit."
        ),
        epochs=Option(True, "Also report states that repeat in a later epoch."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        if not context.facts.counts.get("rng"):
            raise Skip("no visit drew from a generator whose state was recorded")
        drawn = (
            "SELECT epoch, index, visit, generator, hash(state, block_digest) AS state "
            f"FROM {find_drawn_generators(context)}"
        )
        yield from self._find_repeats_within_epochs(context, drawn)
        if context.options["epochs"]:
            yield from self._find_repeats_between_epochs(context, drawn)

    def _find_repeats_within_epochs(self, context: Context, drawn: str) -> Iterable[Finding]:
        states = (
            "SELECT generator, epoch, state, count(*) AS visits, count(DISTINCT worker) AS workers, "
            f"min(index) AS index FROM ({drawn}) JOIN (SELECT epoch, index, visit, worker FROM samples "
            f"WHERE run_id = {context.run_literal}) USING (epoch, index, visit) GROUP BY ALL"
        )
        query = (
            "SELECT generator, sum(visits)::BIGINT AS visits, (sum(visits) - count(*))::BIGINT AS repeated, "
            "max(workers) AS workers, min(index) FILTER (visits > 1) AS index "
            f"FROM ({states}) GROUP BY generator ORDER BY generator"
        )
        for row in context.rows(query):
            share = row["repeated"] / row["visits"]
            if share < context.options["share"]:
                continue
            why = (
                f"each of {row['workers']} workers has a copy of it"
                if row["workers"] > 1
                else "it was reset during the epoch"
            )
            yield Finding(
                f"The random generator {row['generator']} gave {row['repeated']:,} of {row['visits']:,} visits the "
                f"numbers of another visit in the same epoch: {why}. Seed it for each worker, or draw from torch.",
                index=row["index"],
                value=share,
                threshold=context.options["share"],
                sql=f"FROM ({states}) WHERE visits > 1 ORDER BY visits DESC",
            )

    def _find_repeats_between_epochs(self, context: Context, drawn: str) -> Iterable[Finding]:
        states = (
            f"SELECT generator, state, count(DISTINCT epoch) AS epochs, min(index) AS index FROM ({drawn}) GROUP BY ALL"
        )
        query = (
            "SELECT generator, count(*) AS states, count(*) FILTER (epochs > 1) AS repeated, max(epochs) AS epochs, "
            f"min(index) FILTER (epochs > 1) AS index FROM ({states}) GROUP BY generator ORDER BY generator"
        )
        for row in context.rows(query):
            share = row["repeated"] / row["states"]
            if share >= context.options["share"]:
                yield Finding(
                    f"The random generator {row['generator']} gives the same numbers in each of {row['epochs']} epochs "
                    f"({share:.0%} of its states repeat): it is reset at the start of every epoch.",
                    index=row["index"],
                    value=share,
                    threshold=context.options["share"],
                    sql=f"FROM ({states}) WHERE epochs > 1",
                    severity="warning",
                )
