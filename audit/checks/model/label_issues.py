"""`label_issues`: labels that contradict the model's probabilities, the strongest contradiction first.

Confident learning (Northcutt et al., 2021) over what was recorded: a class's threshold is the mean probability that
its samples are given for it; a sample whose probability for another class passes that class's threshold, and passes
its own label's, is counted there. Of those, only so many are reported that most of them are expected to be wrong (see
label_surprise.py). The tests compare this with the package cleanlab, which needs pandas and
scikit-learn and some gigabytes for a million samples; this is two passes over batches of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from audit.checks.base import CAUSES_OF_ERRORS, Check, Finding, Option, Skip, settings
from audit.checks.context import EVALUATION, Context
from audit.checks.shared.files import evenly
from audit.checks.shared.label_surprise import LabelDoubt, judge_labels, surprise_of

Array = np.ndarray[Any, Any]

#: A class's threshold needs at least this many predictions.
_FEWEST = 20
_VISIT = ("epoch", "index", "visit", "label")
_FOUND = ("suggested", "own", "other", "surprise")
#: What to expect of the labels is estimated from at most this many samples.
_MOST_JUDGED = 50_000


class LabelIssues(Check):
    """Report doubtful labels as warnings, because a confidently wrong model looks the same as a wrong label."""

    description = "Labels that are probably wrong, by confident learning on the recorded probabilities; worst first."
    severity = "warning"
    follows = CAUSES_OF_ERRORS
    needs = ("model", "labels")
    options = settings(
        min_confidence=Option(0.7, "Report a label if another class has at least this probability."),
        margin=Option(0.6, "A label is always doubtful if another class's probability is higher by this much."),
        precision=Option(0.7, "Report only so many labels that at least this share of them is expected to be wrong."),
        min_accuracy=Option(0.6, "Check only if the model's predictions agree with at least this share of the labels."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        agreed = context.value(f"SELECT avg(correct::INT) FROM {context.predictions} WHERE correct IS NOT NULL")
        if agreed is None or agreed < context.options["min_accuracy"]:
            raise Skip(f"the model agrees with only {agreed or 0:.0%} of the labels, which is too few to check them")
        doubt = _judge(context, context.options["precision"])
        if doubt is None:
            raise Skip(f"the run has too few predictions; at least {_FEWEST} with probabilities are needed")
        ranked = label_issues(context, context.options["margin"], doubt.temperature)
        strong = np.flatnonzero(
            (ranked["other"] >= context.options["min_confidence"]) & (ranked["surprise"] >= doubt.least_surprise)
        )[: doubt.most]
        context.note(f"the model contradicts {len(ranked['other']):,} labels")
        if len(strong):
            context.note(f"about {doubt.precision:.0%} of the {len(strong):,} reported labels are expected to be wrong")
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
                severity=None if doubt.sure else "info",
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


def _judged(context: Context) -> str:
    return (
        f"(FROM {context.predictions} WHERE label >= 0 AND label < len(probabilities) "
        "AND isfinite(list_sum(probabilities)))"
    )


def _judge(context: Context, precision: float) -> LabelDoubt | None:
    """Return when a label is doubtful, or None if there are too few predictions of one width."""
    rows = context.rows(
        f"SELECT count(*) AS total, max(len(probabilities)) AS most, min(len(probabilities)) AS least FROM {_judged(context)}"
    )[0]
    if rows["total"] < _FEWEST or rows["most"] != rows["least"]:
        return None
    chosen = evenly(_MOST_JUDGED, rows["total"]) if rows["total"] > _MOST_JUDGED else "true"
    query = f"SELECT label, probabilities FROM {_judged(context)} WHERE {chosen}"
    batches = list(context.reader.sql(query, run=[context.run.run_id]).arrow_batches())
    labels = np.concatenate([batch["label"].to_numpy() for batch in batches])
    return judge_labels(np.concatenate([_table(batch) for batch in batches]), labels, precision, rows["total"])


def _table(batch: Any) -> Array:
    """Return the probabilities of an Arrow batch, one row for each sample."""
    flat: Array = batch["probabilities"].flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(batch.num_rows, -1)


def label_issues(context: Context, margin: float = 2.0, temperature: float = 1.0) -> dict[str, Array]:
    """Return every doubtful label, most doubtful first: its visit, label, suggested label, both probabilities, surprise.

    A margin above 1 disables the margin rule, so only confident learning applies.
    """
    judged = _judged(context)
    classes = context.rows(
        "SELECT label, count(*) AS samples, avg(probabilities[label + 1]) AS mean, "
        f"min(len(probabilities)) AS fewest, max(len(probabilities)) AS most FROM {judged} GROUP BY label"
    )
    widths = {row[end] for row in classes for end in ("fewest", "most")}
    if len(widths) != 1 or sum(row["samples"] for row in classes) < _FEWEST:
        return {name: np.empty(0, np.int64) for name in (*_VISIT, *_FOUND)}
    # A class without samples has no threshold, so no sample can be assigned to it.
    thresholds = np.full(widths.pop(), np.inf, np.float32)
    thresholds[[row["label"] for row in classes]] = [row["mean"] for row in classes]
    wanted = f"SELECT {', '.join(_VISIT)}, probabilities FROM {judged}"
    batches = context.reader.sql(wanted, run=[context.run.run_id]).arrow_batches()
    found = [_doubtful(batch, thresholds, margin, temperature) for batch in batches]
    doubts = {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}
    # By the ratio, not the difference: a confident model's mistakes are at 0.95, its wrong labels at 0.9999.
    ratio = np.maximum(doubts["own"], np.float32(1e-12)) / doubts["other"]
    order = np.lexsort((doubts["visit"], doubts["index"], doubts["epoch"], ratio))
    return {name: column[order] for name, column in doubts.items()}


def _doubtful(batch: Any, thresholds: Array, margin: float, temperature: float) -> dict[str, Array]:
    """Return the doubtful labels of one Arrow batch."""
    labels = batch["label"].to_numpy()
    rows = np.arange(len(labels))
    given = _table(batch)
    own = given[rows, labels]
    confident = np.where(given >= thresholds, given, -1.0)
    suggested = confident.argmax(axis=1)
    best = given.argmax(axis=1)
    # The thresholds of a confident model are so high that a wrong label just below them would be missed.
    apart = (given[rows, best] - own >= margin) & (confident[rows, suggested] <= 0)
    suggested = np.where(apart, best, suggested)
    chosen = np.flatnonzero(((confident[rows, suggested] > 0) | apart) & (suggested != labels))
    visits = {name: batch[name].to_numpy()[chosen] for name in _VISIT}
    surprise = surprise_of(given[chosen], labels[chosen], temperature)
    found = (suggested[chosen], own[chosen], given[chosen, suggested[chosen]], surprise)
    return visits | dict(zip(_FOUND, found, strict=True))
