"""`alignment`: each prediction belongs to its sample: input, label, logits and prediction agree."""

from __future__ import annotations

import math
from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.integrity.batch_labels import find_changed_labels
from audit.checks.integrity.unrelated_labels import find_shifted_targets, find_unrelated_labels
from audit.checks.shared.each_split import judge_each_split
from audit.checks.shared.fingerprint import VISIT, have_same_rows
from audit.checks.shared.renumbered_labels import read_label_pairs, why_not_judged
from audit.checks.shared.significance import holm
from audit.lineage.diff.mcnemar import p_value

#: How many predictions are searched for a shift, and how many batches each block has if there are more.
_ENOUGH, _STRETCH = 1_000_000, 16
#: The probability of a shift, in either direction, that is not there.
_LEVEL = 0.001


class Alignment(Check):
    """Recompute what can be recomputed, and look for a shift by one row where neighbours have other labels."""

    description = (
        "A prediction's input is its sample's last stage; labels, logits and predictions agree and are not "
        "shifted against each other; a collate function exchanges no labels."
    )
    question = "Is each prediction that of its sample?"
    statistic = (
        "the digest of the model's input equals that of the last stage. For a shift by one row: McNemar's exact test "
        "between the places where the prediction fits the neighbour's label and those where it fits its own, Holm over "
        "both neighbours. Of a model that is sure: Cramér's V of predictions and labels, corrected for chance, below 0.1. "
        "Measured targets: rank correlation of 0.5 with another row or the other sign, and less than half of it as they "
        "are; a part of them, 90 % within a factor of 2 of a power of ten times what is predicted. The labels of a batch are compared with those of its samples"
    )
    assumes = "the last stage's output is the model's input"
    options = settings(
        shift_gain=Option(
            0.25, "Report a shift by one row that raises the accuracy at label changes by at least this."
        ),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        labels = read_label_pairs(context)
        yield from find_changed_labels(context, labels)
        if not context.facts.counts.get("predictions"):
            if not labels:
                raise Skip("the run has no predictions; record it with --model")
            return
        yield from _inputs(context)
        yield from _labels(context)
        yield from _recompute(context)
        if why_not_judged(context):
            context.note("a shift of predictions was not looked for: the batches have other numbers for the labels")
            return
        yield from _find_shift(context)
        if context.run.task == "regression":
            yield from judge_each_split(context, find_shifted_targets)
        else:
            yield from judge_each_split(context, find_unrelated_labels)


def _inputs(context: Context) -> Iterable[Finding]:
    for last in context.last_stages:
        kinds = {row["kind"] for row in context.profile if row["stage"] == last}
        if not kinds or not kinds <= {"tensor", "array"}:
            # The collate function turns texts and mappings into other values, with other digests.
            context.note("inputs were not compared: the model's input is not a plain tensor")
            continue
        # If the loop changed the batch, the row lists the operations, and the digests differ.
        given = f"(FROM {context.all_predictions} WHERE input_digest IS NOT NULL AND operations IS NULL)"
        returned = f"(FROM stage_outputs WHERE run_id = {context.run_literal} AND stage = {last})"
        if have_same_rows(context, f"{VISIT}, input_digest", given, returned, f"{VISIT}, digest"):
            continue
        query = (
            f"SELECT epoch, index, visit FROM {given} p JOIN {returned} o USING (epoch, index, visit) "
            "WHERE p.input_digest <> o.digest"
        )
        for row in context.offenders(query):
            yield Finding(
                f"What the model was given for {row['source']} (index {row['index']}) is not what its last stage "
                f"{context.stage_name(last)} returned.",
                index=row["index"],
                source=row["source"],
                stage=last,
                sql=query,
            )


def _labels(context: Context) -> Iterable[Finding]:
    graded = f"(FROM {context.all_predictions} WHERE label IS NOT NULL)"
    labelled = f"(FROM {context.samples} WHERE label IS NOT NULL)"
    if have_same_rows(context, f"{VISIT}, label", graded, f"(FROM {labelled} WHERE status = 'ok')"):
        return
    query = (
        f"SELECT p.index, s.source, s.label AS label, p.label AS graded FROM {graded} p "
        f"JOIN {labelled} s USING (epoch, index, visit) WHERE p.label <> s.label"
    )
    for row in context.offenders(query):
        yield Finding(
            f"{row['source']} (index {row['index']}) has the label {row['label']}, "
            f"but its prediction was graded against {row['graded']}.",
            index=row["index"],
            source=row["source"],
            value=row["graded"],
            threshold=row["label"],
            sql=query,
        )


def _recompute(context: Context) -> Iterable[Finding]:
    half = 0.5 if context.run.output in ("probabilities", "sigmoid") else 0
    best = (
        f"CASE WHEN len(logits) = 1 THEN (logits[1] > {half})::INT ELSE list_position(logits, list_max(logits)) - 1 END"
    )
    query = (
        f"SELECT epoch, index, visit, predicted, best, label, correct FROM "
        f"(SELECT *, {best} AS best, list_max(logits) = logits[predicted + 1] AS tied FROM {context.all_predictions} "
        "WHERE len(logits) > 0 AND isfinite(list_sum(logits))) "
        "WHERE (predicted <> best AND NOT coalesce(tied, false)) OR correct <> (predicted = label)"
    )
    for row in context.offenders(query):
        if row["predicted"] != row["best"]:
            said = f"its logits say {row['best']}, but {row['predicted']} is recorded as predicted"
        else:
            said = (
                f"predicted {row['predicted']} with the label {row['label']} is recorded as correct = {row['correct']}"
            )
        yield Finding(
            f"{row['source']} (index {row['index']}): {said}.",
            index=row["index"],
            source=row["source"],
            value=row["predicted"],
            threshold=row["best"],
            sql=query,
        )


def _find_shift(context: Context) -> Iterable[Finding]:
    """Check whether predictions fit the label of a neighbour better than their own label."""
    # A few blocks of neighbours are enough; sorting all predictions of a large run would be expensive.
    every = math.ceil(context.facts.counts["predictions"] / _ENOUGH)
    stretch = f"(coalesce(batch, index) // {_STRETCH})"
    chosen = f" AND {stretch} % {every} = 0" if every > 1 else ""
    beside = f"OVER ({f'PARTITION BY epoch, {stretch} ' if every > 1 else ''}ORDER BY epoch, batch, position, index)"
    query = (
        f"SELECT label, predicted, lag(label) {beside} AS before, lead(label) {beside} AS after "
        f"FROM {context.predictions} WHERE predicted IS NOT NULL{chosen}"
    )
    sides = " UNION ALL ".join(
        f"SELECT '{side}' AS side, count(*) AS places, avg((predicted = label)::INT) AS now, "
        f"avg((predicted = {side})::INT) AS shifted, avg((abs({side} - label) = 1)::INT) AS adjacent, count(DISTINCT label) AS classes, "
        f"(SELECT {{'places': count(*), 'matching': avg((predicted = label)::INT)}} "
        f"FROM shown WHERE label = {side}) AS beside FROM shown WHERE label <> {side}"
        for side in ("before", "after")
    )
    query = f"WITH shown AS MATERIALIZED ({query}) {sides}"
    rows = context.rows(query)
    # At each place the prediction fits one of the two labels, or neither: McNemar's test.
    chances = [
        p_value(round((row["shifted"] or 0) * row["places"]), round((row["now"] or 0) * row["places"])) for row in rows
    ]
    for row, sure in zip(rows, holm(chances, _LEVEL), strict=True):
        if row["places"] < 8:
            continue
        # Shifted rows are right where the neighbour has the same label; rows with wrong labels are not.
        if row["beside"]["places"] >= 8 and row["beside"]["matching"] < row["shifted"] / 2:
            continue
        # With one sample of each class, in their order, the sample after is also the class after: class_order reports that.
        is_one_each = row["beside"]["places"] < 8 and 2 * row["classes"] > row["places"]
        if is_one_each and row["adjacent"] > 0.5:
            continue
        gain = row["shifted"] - row["now"]
        if sure and gain > context.options["shift_gain"]:
            yield Finding(
                f"Predictions are shifted by one against labels: at {row['places']:,} places where the label changes, "
                f"{row['shifted']:.0%} fit the label of the sample {row['side']}, and {row['now']:.0%} their own.",
                value=row["shifted"],
                threshold=row["now"],
                sql=query,
            )
