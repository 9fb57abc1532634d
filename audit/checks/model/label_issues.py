"""`label_issues`: labels that are probably wrong, the most probable first.

Only labels that the model contradicts can be reported, and only so many of them that a given share is expected to be
wrong. How probably each is wrong follows from all labels together (see label_noise.py). The probabilities must be out of
sample: on what it was trained on, a model repeats wrong labels, and nothing follows from what it still contradicts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from audit.checks.base import CAUSES_OF_ERRORS, Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.content import are_contents_compared, select_alike
from audit.checks.shared.files import spread_evenly
from audit.checks.shared.label_noise import LabelNoise, fit_noise
from audit.checks.shared.training_steps import is_trained
from audit.class_names import show_class
from audit.split_names import is_evaluation
from audit.store.plain_arrays import numbers_of
from audit.store.sql_literal import literal

Array = np.ndarray[Any, Any]

#: With fewer predictions nothing can be said about their labels.
_FEWEST = 20
_VISIT = ("epoch", "index", "visit", "label")
#: How many labels are wrong is estimated from at most so many samples, and so many probabilities.
_MOST_SAMPLES, _MOST_PROBABILITIES = 20_000, 2_000_000
#: So many labels are listed, as notes, where it is not sure that any is wrong.
_NOTES = 3


class LabelIssues(Check):
    """Report doubtful labels as warnings, because a confidently wrong model looks the same as a wrong label."""

    description = "Labels that are probably wrong, by the recorded probabilities; the most probable first."
    question = "Which labels are probably wrong?"
    statistic = (
        "a mixture of labels that follow the probabilities, at several temperatures, and labels of any class; the "
        "likeliest shares give each label's probability of being wrong; likelihood ratio of at least e³ for any wrong "
        "label"
    )
    assumes = (
        "wrong labels have any class; the model predicts at least 80 % of the right labels; probabilities out of "
        "sample (skipped on samples that the run trained on; a note where audit did not see it)"
    )
    severity = "warning"
    # A label that the baseline's model predicted is not doubtful because this one is worse.
    follows = (*CAUSES_OF_ERRORS, "prediction_flips", "class_regressions")
    needs = ("model", "labels", "same_labels")
    options = settings(
        precision=Option(
            0.8, "Report as many labels as possible while at least this share of them is expected to be wrong."
        ),
        min_accuracy=Option(0.8, "Check only if the model predicts at least this share of the right labels."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        judged = _select_judged(context)
        noise = _fit(context, judged)
        wanted = f"SELECT {', '.join(_VISIT)}, predicted, probabilities FROM {judged} WHERE predicted <> label"
        contradicted = int(context.value(f"SELECT count(*) FROM {judged} WHERE predicted <> label"))
        agreed = 1 - contradicted / int(context.value(f"SELECT count(*) FROM {judged}"))
        if noise.known_share(agreed) < context.options["min_accuracy"]:
            raise Skip(
                f"the model predicts only {agreed:.0%} of the labels, which is too few to doubt the others; at least "
                f"{context.options['min_accuracy']:.0%} are needed"
            )
        context.note(f"the model contradicts {contradicted:,} labels")
        doubts = _rank_labels(context, wanted, noise)
        count, expected = _count_listed(doubts["chance"], context.options["precision"])
        count = count if noise.sure else min(count, _NOTES)
        if not count:
            return
        context.note(f"about {expected:.0%} of the {count:,} reported labels are expected to be wrong")
        _note_sample(context)
        context.unlisted += max(0, count - context.most)
        yield from _findings(context, {name: column[:count] for name, column in doubts.items()}, noise.sure)


def _findings(context: Context, doubts: dict[str, Array], sure: bool) -> Iterable[Finding]:
    selected = {name: column[: context.most].tolist() for name, column in doubts.items()}
    selected["source"] = context.sources_of(
        list(zip(*(selected[name] for name in ("epoch", "index", "visit")), strict=True))
    )
    rows = [dict(zip(selected, values, strict=True)) for values in zip(*selected.values(), strict=True)]
    classes = context.run.classes
    conflicting = _list_conflicting(context) if rows else set()
    for row in sorted(rows, key=lambda row: (row["epoch"], row["index"], row["visit"]) in conflicting):
        label, given = (show_class(classes, n) for n in (row["label"], row["predicted"]))
        yield Finding(
            f"{row['source']} (index {row['index']}) is labelled {label} (probability {row['own']:.1%}), "
            f"but looks like {given} ({row['other']:.1%}).",
            index=row["index"],
            source=row["source"],
            value=row["own"],
            threshold=row["other"],
            sql=context.evidence("predictions", row["index"]),
            severity=None if sure else "info",
            causes=("conflicting_labels",) if (row["epoch"], row["index"], row["visit"]) in conflicting else (),
        )


def _list_conflicting(context: Context) -> set[tuple[int, int, int]]:
    """Return the visits whose content has other labels elsewhere, if that was looked for: else nothing reports it."""
    if not are_contents_compared(context):
        return set()
    alike = select_alike(context, "min(label) <> max(label)")
    items = f"SELECT DISTINCT split, index, source FROM {alike} LIMIT {context.most}"
    rows = context.rows(
        f"SELECT s.epoch, s.index, s.visit FROM {context.samples} s SEMI JOIN ({items}) i "
        "ON s.index = i.index AND s.source = i.source AND s.split IS NOT DISTINCT FROM i.split"
    )
    return {(row["epoch"], row["index"], row["visit"]) for row in rows}


def _select_judged(context: Context) -> str:
    """Return the predictions that can be judged as SQL: after training, only those of an evaluation split."""
    usable = (
        f"(FROM {context.predictions} WHERE label >= 0 AND label < len(probabilities) "
        "AND predicted IS NOT NULL AND isfinite(list_sum(probabilities)))"
    )
    if not is_trained(context):
        return usable
    splits = [row["split"] for row in context.facts.epochs if is_evaluation(row["split"])]
    if not splits:
        raise Skip(
            "the probabilities are not out of sample: the model was trained on these samples in this run, and repeats "
            "wrong labels; record an evaluation split"
        )
    chosen = f"(FROM {context.samples} WHERE split IN ({', '.join(map(literal, splits))}))"
    return f"(FROM {usable} SEMI JOIN {chosen} USING (epoch, index, visit))"


def _note_sample(context: Context) -> None:
    """Add a note on whether the model knew the samples."""
    splits = {row["split"] for row in context.facts.epochs if row["split"] is not None}
    if is_trained(context) or (splits and all(map(is_evaluation, splits))):
        context.note("the probabilities are of an evaluation split; they are taken to be out of sample")
    else:
        context.note(
            "audit did not see whether the model was trained on these samples; if it was, wrong labels are missed, and "
            "the expected share is too high"
        )


def _fit(context: Context, judged: str) -> LabelNoise:
    """Return how many labels are wrong; raise Skip if there are too few predictions of one width."""
    rows = context.rows(
        f"SELECT count(*) AS total, max(len(probabilities)) AS most, min(len(probabilities)) AS least FROM {judged}"
    )[0]
    if rows["total"] < _FEWEST or rows["most"] != rows["least"]:
        raise Skip(f"the run has {rows['total']:,} predictions with probabilities; at least {_FEWEST} are needed")
    most = max(_FEWEST, min(_MOST_SAMPLES, _MOST_PROBABILITIES // rows["most"]))
    chosen = spread_evenly(most, rows["total"]) if rows["total"] > most else "true"
    query = f"SELECT label, probabilities FROM {judged} WHERE {chosen}"
    batches = list(context.reader.sql(query, run=[context.run.run_id]).arrow_batches())
    labels = np.concatenate([numbers_of(batch["label"]) for batch in batches])
    return fit_noise(np.concatenate([_table(batch) for batch in batches]), labels)


def _rank_labels(context: Context, query: str, noise: LabelNoise) -> dict[str, Array]:
    """Return every contradicted label, the most doubtful first: its visit, label, prediction, probabilities, chance."""
    found: dict[str, list[Array]] = {name: [] for name in (*_VISIT, "predicted", "own", "other", "chance")}
    for batch in context.reader.sql(query, run=[context.run.run_id]).arrow_batches():
        given, rows = _table(batch), np.arange(batch.num_rows)
        columns = {name: numbers_of(batch[name]) for name in (*_VISIT, "predicted")}
        columns["own"], columns["other"] = given[rows, columns["label"]], given[rows, columns["predicted"]]
        columns["chance"] = noise.wrong_chance(given, columns["label"])
        for name, column in columns.items():
            found[name].append(column)
    doubts = {name: np.concatenate(parts) if parts else np.empty(0, np.int64) for name, parts in found.items()}
    order = np.lexsort((doubts["visit"], doubts["index"], doubts["epoch"], doubts["own"], -doubts["chance"]))
    return {name: column[order] for name, column in doubts.items()}


def _count_listed(chances: Array, precision: float) -> tuple[int, float]:
    """Return how many of the most doubtful labels can be listed so that this share of them is wrong, and the share."""
    shares = np.cumsum(chances) / np.arange(1, len(chances) + 1)
    enough = np.flatnonzero(shares >= precision)
    return (0, 0.0) if not len(enough) else (int(enough[-1]) + 1, float(shares[enough[-1]]))


def _table(batch: Any) -> Array:
    """Return the probabilities of an Arrow batch, one row for each sample."""
    return numbers_of(batch["probabilities"].flatten()).reshape(batch.num_rows, -1)
