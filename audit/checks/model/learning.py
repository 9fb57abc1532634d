"""`learning`: a model that was trained gives the same outputs as before."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.training_steps import is_trained


class Learning(Check):
    """Compare what the model gave for the same input in its first and in its last epoch."""

    description = "A model that is trained gives other outputs for the same input in a later epoch: its weights change."
    question = "Do the weights change?"
    rule = "the logits of the same inputs in the first and the last epoch are compared; not one of them changed"
    assumes = "a model without random layers, or in evaluation mode"
    needs = ("model",)
    options = settings(samples=Option(20, "Judge only if at least this many inputs were predicted in two epochs."))

    def run(self, context: Context) -> Iterable[Finding]:
        if not is_trained(context):
            raise Skip("the run recorded no training step")
        one = (
            f"SELECT index, input_digest, logits FROM {context.all_predictions} "
            "WHERE input_digest IS NOT NULL AND operations IS NULL AND epoch = "
        )
        first, last = context.rows(f"SELECT min(epoch) AS first, max(epoch) AS last FROM {context.all_predictions}")[
            0
        ].values()
        # Several loaders share indices: the same input makes a pair, whatever its split.
        query = (
            f"SELECT count(*) AS pairs, count(*) FILTER (a.logits = b.logits) AS equal FROM ({one}{first}) a "
            f"JOIN ({one}{last}) b ON a.index = b.index AND a.input_digest = b.input_digest"
        )
        found = context.rows(query)[0] if first != last else {"pairs": 0, "equal": 0}
        if found["pairs"] < context.options["samples"]:
            raise Skip(
                f"{found['pairs']} inputs were predicted in the first and in the last epoch; "
                f"at least {context.options['samples']} are needed"
            )
        if found["equal"] == found["pairs"]:
            yield Finding(
                f"The model gave exactly the same outputs in epoch {first} and in epoch {last} for {found['pairs']:,} inputs, although it was "
                "trained: its weights did not change. Does the optimizer have its parameters, and a learning rate above 0?",
                value=1.0,
                sql=query,
            )
