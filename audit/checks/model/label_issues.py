"""`label_issues`: labels that contradict the model's probabilities, the strongest contradiction first.

Confident learning (Northcutt et al., 2021) over what was recorded: a class's threshold is the mean probability that
its samples are given for it; a sample whose probability for another class passes that class's threshold, and passes
its own label's, is counted there. The tests compare this with the package cleanlab, which needs pandas and
scikit-learn and some gigabytes for a million samples; this is two passes over batches of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import EVALUATION, Context

Array = np.ndarray[Any, Any]

#: A class's threshold needs at least this many predictions.
_FEWEST = 20
_VISIT = ("epoch", "index", "visit", "label")


class LabelIssues(Check):
    """Report doubtful labels as warnings, because a confidently wrong model looks the same as a wrong label."""

    name = "label_issues"
    group = "model"
    description = "Labels that are probably wrong, by confident learning on the recorded probabilities; worst first."
    severity = "warning"
    needs = ("model", "labels")
    options = settings(
        min_confidence=Option(0.7, "Report a label if another class has at least this probability."),
        margin=Option(0.6, "A label is always doubtful if another class's probability is higher by this much."),
        min_accuracy=Option(0.6, "Check only if the model's predictions agree with at least this share of the labels."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        agreed = context.value(f"SELECT avg(correct::INT) FROM {context.predictions} WHERE correct IS NOT NULL")
        if agreed is None or agreed < context.options["min_accuracy"]:
            raise Skip(f"the model agrees with only {agreed or 0:.0%} of the labels, which is too few to check them")
        ranked = label_issues(context, context.options["margin"])
        strong = np.flatnonzero(ranked["other"] >= context.options["min_confidence"])
        context.note(f"{len(ranked['other']):,} labels are doubtful, {len(strong):,} of them strongly")
        if len(ranked["other"]):
            _note_sample(context)
        context.unlisted += max(0, len(strong) - context.most)
        selected = {name: column[strong[: context.most]].tolist() for name, column in ranked.items()}
        rows = [dict(zip(selected, values, strict=True)) for values in zip(*selected.values(), strict=True)]
        context.name(rows)
        classes = context.run.classes or []
        for row in rows:
            label, given = (classes[n] if n < len(classes) else str(n) for n in (row["label"], row["suggested"]))
            yield Finding(
                f"{row['source']} (index {row['index']}) is labelled {label} (probability {row['own']:.1%}), "
                f"but looks like {given} ({row['other']:.1%}).",
                index=row["index"],
                source=row["source"],
                value=row["own"],
                threshold=row["other"],
                sql=context.evidence("predictions", row["index"]),
            )


def _note_sample(context: Context) -> None:
    """Add a note on whether the model knew the samples: on what it was trained on, it repeats wrong labels."""
    steps = f"steps WHERE run_id = {context.run_literal}"
    trained = context.facts.counts.get("steps") and context.value(
        f"SELECT count(coalesce(learning_rate, gradient_norm)) FROM {steps}"
    )
    splits = {str(row["split"]).lower() for row in context.facts.epochs if row["split"] is not None}
    if trained and not splits & set(EVALUATION):
        context.note("the probabilities are not out of sample: the model was trained on these samples in this run")
    elif splits and splits <= set(EVALUATION):
        context.note("the probabilities are of an evaluation split; they are taken to be out of sample")
    else:
        context.note("audit did not see whether the model was trained on these samples; if so, wrong labels are missed")


def label_issues(context: Context, margin: float = 2.0) -> dict[str, Array]:
    """Return every doubtful label, most doubtful first: its visit, label, suggested label, and both probabilities.

    A margin above 1 disables the margin rule, so only confident learning applies.
    """
    judged = (
        f"(FROM {context.predictions} WHERE label >= 0 AND label < len(probabilities) "
        "AND isfinite(list_sum(probabilities)))"
    )
    classes = context.rows(
        "SELECT label, count(*) AS samples, avg(probabilities[label + 1]) AS mean, "
        f"min(len(probabilities)) AS fewest, max(len(probabilities)) AS most FROM {judged} GROUP BY label"
    )
    widths = {row[end] for row in classes for end in ("fewest", "most")}
    if len(widths) != 1 or sum(row["samples"] for row in classes) < _FEWEST:
        return {name: np.empty(0, np.int64) for name in (*_VISIT, "suggested", "own", "other")}
    # A class without samples has no threshold, so no sample can be assigned to it.
    thresholds = np.full(widths.pop(), np.inf, np.float32)
    thresholds[[row["label"] for row in classes]] = [row["mean"] for row in classes]
    wanted = f"SELECT {', '.join(_VISIT)}, probabilities FROM {judged}"
    batches = context.reader.sql(wanted, run=[context.run.run_id]).arrow_batches()
    found = [_doubtful(batch, thresholds, margin) for batch in batches]
    doubts = {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}
    # By the ratio, not the difference: a confident model's mistakes are at 0.95, its wrong labels at 0.9999.
    ratio = np.maximum(doubts["own"], np.float32(1e-12)) / doubts["other"]
    order = np.lexsort((doubts["visit"], doubts["index"], doubts["epoch"], ratio))
    return {name: column[order] for name, column in doubts.items()}


def _doubtful(batch: Any, thresholds: Array, margin: float) -> dict[str, Array]:
    """Return the doubtful labels of one Arrow batch."""
    labels = batch["label"].to_numpy()
    rows = np.arange(len(labels))
    given = batch["probabilities"].flatten().to_numpy(zero_copy_only=False).reshape(len(labels), len(thresholds))
    own = given[rows, labels]
    confident = np.where(given >= thresholds, given, -1.0)
    suggested = confident.argmax(axis=1)
    best = given.argmax(axis=1)
    # The thresholds of a confident model are so high that a wrong label just below them would be missed.
    apart = (given[rows, best] - own >= margin) & (confident[rows, suggested] <= 0)
    suggested = np.where(apart, best, suggested)
    chosen = np.flatnonzero(((confident[rows, suggested] > 0) | apart) & (suggested != labels))
    visits = {name: batch[name].to_numpy()[chosen] for name in _VISIT}
    return visits | {"suggested": suggested[chosen], "own": own[chosen], "other": given[chosen, suggested[chosen]]}


CHECK = LabelIssues
