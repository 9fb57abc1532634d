"""`probe`: the model is right far more often if its input is prepared otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypedDict

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.files import spread_evenly
from audit.checks.shared.significance import holm, wilson
from audit.errors import DatasetError, ModelError, PipelineError, UsageError
from audit.lineage.diff.mcnemar import p_value
from audit.sources.builder import builders_of, can_be_rebuilt
from audit.sources.trust import is_derivable
from audit.split_names import is_evaluation

if TYPE_CHECKING:
    from audit.lineage.replay.counterfactual import Counterfactual, Probe

#: Fewer samples show no gain that chance does not explain.
_FEWEST = 30


class GradedVisit(TypedDict):
    """A prediction with its label."""

    epoch: int
    index: int
    visit: int
    label: int
    predicted: int | None


#: The share of predictions that may turn because a sum was rounded otherwise.
_BY_ROUNDING = 0.02
#: Gains that differ by less than this are equal.
_EQUAL = 0.02


class ProbeCheck(Check):
    """Predict a few hundred samples again, with one thing changed at a time; runs the pipeline's code and the model."""

    description = (
        "With --probe: no other channel order, normalisation, aspect, orientation, mode or class order makes the "
        "model right far more often, and the same input gives the same prediction."
    )
    question = "Would the model be right more often if its input were prepared otherwise?"
    statistic = "McNemar's exact test on the same samples, Holm over about 20 changes"
    assumes = "the recorded samples are typical"
    needs = ("model", "labels", "same_labels")
    options = settings(
        samples=Option(256, "Predict this many samples again, evenly chosen."),
        gain=Option(0.05, "Report a change that raises the accuracy by at least this."),
        significance=Option(0.001, "The probability of any false finding among all changes."),
        model=Option("", "The checkpoint, for a run of your own loop, which does not say where its model is."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        if not context.facts.probe:
            raise Skip("it runs the model again; pass --probe to allow that")
        split = _split(context)
        graded = self._choose(context, split)
        if len(graded) < _FEWEST:
            raise Skip(f"{len(graded)} samples are graded; at least {_FEWEST} are needed")
        found = self._probe(context, graded, split)
        if found.samples < _FEWEST:
            raise Skip("the model's inputs are not pictures of one size, or the samples could not be made again")
        context.note(f"{found.samples} samples predicted again, {found.agreed} of them as recorded")
        yield from self._judge(context, found)

    def _choose(self, context: Context, split: str | None) -> list[GradedVisit]:
        graded = f"(FROM {context.predictions} WHERE label IS NOT NULL AND predicted IS NOT NULL)"
        if split is not None:
            graded = f"(FROM {graded} SEMI JOIN (FROM {context.samples} WHERE split = '{split}') USING (epoch, index, visit))"
        total = context.value(f"SELECT count(*) FROM {graded}")
        most = max(_FEWEST, context.options["samples"])
        chosen = f" WHERE {spread_evenly(most, total)}" if total > most else ""
        columns = ", ".join(GradedVisit.__annotations__)
        return context.facts.typed_rows(
            GradedVisit, f"SELECT {columns} FROM {graded}{chosen} ORDER BY ALL LIMIT {most}"
        )

    def _probe(self, context: Context, graded: list[GradedVisit], split: str | None) -> Probe:
        checkpoint = context.options["model"] or None
        if not can_be_rebuilt(context.run.recipe) or (checkpoint is None and context.run.recipe.get("kind") != "run"):
            raise Skip(
                "the run was recorded in a user's own loop; record it with run.loader(…, builder=…), and name the "
                "checkpoint as `model` in [checks.probe]"
            )
        if not is_derivable(context.run, context.facts.trust):
            raise Skip(
                "it would execute code that this machine did not record, or that has changed since; pass --trust"
            )
        from audit.lineage.replay.counterfactual import GradedSample, probe

        wanted = [GradedSample((r["epoch"], r["index"], r["visit"]), r["label"], r["predicted"]) for r in graded]
        try:
            return probe(
                context.reader, context.run, wanted, checkpoint=checkpoint, trust=context.facts.trust, split=split
            )
        except (UsageError, DatasetError, PipelineError, ModelError) as error:
            raise Skip(f"pipeline or model cannot be rebuilt: {error.message}") from error

    def _judge(self, context: Context, found: Probe) -> Iterable[Finding]:
        """Report the change that gains most, and name the others that gain too: they have one cause."""
        changes = list(found.changes.values())
        if context.facts.counts.get("steps") or found.agreed < found.samples:
            changes.append(found.evaluation)
        sure = holm([p_value(one.fixed, one.broken) for one in changes], context.options["significance"])
        gains = [
            one
            for one, significant in zip(changes, sure, strict=True)
            if significant and _gain(one) >= context.options["gain"]
        ]
        if not gains:
            yield from _find_chance(context, found)
            return
        gains.sort(key=_gain, reverse=True)
        # Of changes that gain about as much, the one that says most: a network may take any scale for the right one.
        equal = [one for one in gains if _gain(one) >= _gain(gains[0]) - _EQUAL]
        best = min(equal, key=lambda one: (one.description.startswith("as 0 to"), -_gain(one)))
        others = [one for one in gains if one is not best]
        before = found.correct / found.samples
        if best is found.evaluation:
            before = (found.correct - best.fixed + best.broken) / found.samples
        low, high = _interval(best)
        beneath = f" Others that help: {'; '.join(one.description for one in others[:3])}." if others else ""
        yield Finding(
            f"{best.description[0].upper()}{best.description[1:]}, the model is right in {before + _gain(best):.1%} of "
            f"{best.samples} samples instead of {before:.1%}: {best.fixed} turn right and {best.broken} wrong "
            f"(p {p_value(best.fixed, best.broken):.1g}; the gain is {low:.1%} to {high:.1%}).{beneath}",
            value=before + _gain(best),
            threshold=before,
            sql=f"FROM predictions WHERE run_id = {context.run_literal} AND NOT correct",
        )


def _find_chance(context: Context, found: Probe) -> Iterable[Finding]:
    """Report a model that predicts otherwise when it is given the same inputs again."""
    other = found.samples - found.agreed
    if wilson(other, found.samples)[0] > _BY_ROUNDING:
        yield Finding(
            f"{other} of {found.samples} predictions differ when they are made again: the model draws random numbers "
            "in evaluation mode too, such as with functional.dropout(x) without training=self.training, or its weights have "
            "changed.",
            value=other / found.samples,
            threshold=_BY_ROUNDING,
            sql=f"FROM predictions WHERE run_id = {context.run_literal}",
            severity="warning",
        )


def _split(context: Context) -> str | None:
    """Return the split whose dataset is rebuilt, an evaluation split if there is one; None if there is only one dataset."""
    splits = [str(one.get("split")) for one in builders_of(context.run.recipe)]
    if len(splits) < 2:
        return None
    return next((split for split in splits if is_evaluation(split)), splits[0])


def _gain(one: Counterfactual) -> float:
    return (one.fixed - one.broken) / max(1, one.samples)


def _interval(one: Counterfactual) -> tuple[float, float]:
    """Return the 95 % interval of a difference of paired rates."""
    flips, n = one.fixed + one.broken, max(1, one.samples)
    spread = 1.96 * math.sqrt(max(0.0, flips - (one.fixed - one.broken) ** 2 / n)) / n
    return _gain(one) - spread, _gain(one) + spread
