"""`calibration`: confidence that does not match accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypedDict

import numpy as np

from audit.checks.base import CAUSES_OF_ERRORS, Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.files import spread_evenly
from audit.checks.shared.significance import holm, normal_tails
from audit.checks.shared.training_steps import is_trained
from audit.split_names import is_evaluation
from audit.store.plain_arrays import numbers_of

Array = np.ndarray[Any, Any]

#: A predicted class with fewer samples is not judged: the normal distribution does not describe so few hits.
_FEWEST = 20


#: The scale of logits is judged by at least so many wrong predictions, and at most so many samples.
_FEWEST_WRONG, _MOST_SCALED = 10, 5_000
#: Another scale must make the labels likelier by this factor (its logarithm).
_SURE = 10.0
_SCALES = tuple(2 ** (n / 2) for n in range(15))


class ConfidenceBin(TypedDict):
    """The predictions whose confidence lies in one bin."""

    bin: int
    samples: int
    confidence: float
    accuracy: float


class ClassCalibration(TypedDict):
    """Confidence and accuracy of the samples that were predicted as one class."""

    predicted: int
    name: str | None
    samples: int
    confidence: float
    accuracy: float
    spread: float


class Calibration(Check):
    """Compute the expected calibration error over equal bins, less the error that chance alone causes."""

    description = "Of predictions with 90 % confidence, 90 % should be right: the expected calibration error is small."
    question = "Does confidence match accuracy?"
    statistic = (
        "expected calibration error, less what chance causes in each bin and less two standard errors; the factor that "
        "makes the labels likeliest, with a likelihood ratio of at least e¹⁰; each predicted class by the sum of its "
        "confidences, Holm over the classes"
    )
    assumes = "confidences spread over the bins"
    severity = "warning"
    # Where one class is never right, what is predicted instead of it is too sure.
    follows = (*CAUSES_OF_ERRORS, "accuracy", "per_class_accuracy", "weak_segments")
    needs = ("model", "labels", "same_labels")
    options = settings(
        max=Option(0.1, "The largest expected calibration error that is allowed."),
        max_class=Option(0.2, "The largest gap of confidence and accuracy that is allowed for one predicted class."),
        significance=Option(0.001, "The probability of any false finding among all classes (Holm)."),
        max_scale=Option(8.0, "The factor by which logits may be too large."),
        bins=Option(15, "The number of confidence bins."),
        samples=Option(100, "Check only if at least this many samples are graded."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        if not context.narrowing.splits and _was_trained_meanwhile(context):
            raise Skip("the model was trained between these predictions; record an evaluation split")
        bins = max(1, context.options["bins"])
        query = (
            f"SELECT least(floor(confidence * {bins}), {bins - 1})::INT AS bin, count(*) AS samples, "
            f"avg(confidence) AS confidence, avg(correct::INT) AS accuracy FROM {context.judged_predictions} "
            "WHERE correct IS NOT NULL AND confidence IS NOT NULL GROUP BY bin ORDER BY bin"
        )
        rows = context.facts.typed_rows(ConfidenceBin, query)
        total = sum(row["samples"] for row in rows)
        if total < context.options["samples"]:
            raise Skip(f"{total} samples are graded; at least {context.options['samples']} are needed")
        gap = sum(row["samples"] * abs(row["accuracy"] - row["confidence"]) for row in rows) / total
        # A bin of n samples deviates by about sqrt(p(1-p)/n) by chance alone.
        noise = (
            sum(
                math.sqrt(2 / math.pi * max(row["confidence"] * (1 - row["confidence"]), 0) * row["samples"])
                for row in rows
            )
            / total
        )
        # The errors of all bins together vary at most as the number of right predictions does.
        doubt = 2 * math.sqrt(sum(max(row["confidence"] * (1 - row["confidence"]), 0) * row["samples"] for row in rows))
        least = max(0.0, gap - noise - doubt / total)
        context.note(f"expected calibration error {gap:.3f}, of which {noise:.3f} is expected by chance")
        if least > context.options["max"]:
            sure = sum(row["samples"] * (row["confidence"] - row["accuracy"]) for row in rows)
            yield Finding(
                f"The expected calibration error is {gap:.3f}, of which at least {least:.3f} is not due to chance: the model is {'over' if sure > 0 else 'under'}confident.",
                value=gap,
                threshold=context.options["max"],
                sql=query,
            )
        # If the model as a whole is not calibrated, its classes are not either.
        elif found := list(self._judge_classes(context)):
            yield from found
        # Where single classes are at fault, the scale of all logits is not.
        elif (finding := self._judge_scale(context, rows)) is not None:
            yield finding

    def _judge_scale(self, context: Context, bins: list[ConfidenceBin]) -> Finding | None:
        """Return a finding if the logits are many times too large: a model that is mostly right hides it from the error of its bins."""
        usable = (
            f"(FROM {context.judged_predictions} WHERE correct IS NOT NULL AND len(logits) > 1 AND len(logits) = len(probabilities) "
            "AND label >= 0 AND label < len(logits) AND isfinite(list_sum(logits)))"
        )
        # Of a model that returns probabilities, their logarithms are the logits.
        logits = (
            "logits"
            if context.run.output in (None, "logits")
            else "list_transform(probabilities, lambda p: ln(greatest(p, 1e-38)))"
        )
        query = f"SELECT label, {logits}::FLOAT[] AS logits FROM {usable}"
        total = sum(row["samples"] for row in bins)
        wrong = round(sum(row["samples"] * (1 - row["accuracy"]) for row in bins))
        if wrong < _FEWEST_WRONG:
            return None
        if total > _MOST_SCALED:
            query += f" WHERE {spread_evenly(_MOST_SCALED, total)}"
        batches = list(context.reader.sql(query, run=[context.run.run_id]).arrow_batches())
        widths = {width for batch in batches for width in batch["logits"].value_lengths().unique().to_pylist()}
        if len(widths) != 1:
            return None
        given = np.concatenate([numbers_of(batch["logits"].flatten()) for batch in batches]).reshape(-1, widths.pop())
        scale, gained = best_temperature(given, np.concatenate([numbers_of(batch["label"]) for batch in batches]))
        if scale < context.options["max_scale"] or gained < _SURE:
            return None
        return Finding(
            f"The logits are about {scale:.0f} times too large: divided by that, they give the labels the highest likelihood (e^{gained:.0f} times as high). "
            f"The model is overconfident: {wrong:,} of {total:,} predictions are wrong with a confidence near 100 %.",
            value=scale,
            threshold=context.options["max_scale"],
            sql=f"SELECT index, confidence, loss FROM {usable} WHERE NOT correct ORDER BY loss DESC",
        )

    def _judge_classes(self, context: Context) -> Iterable[Finding]:
        query = (
            "SELECT predicted, any_value(predicted_name) AS name, count(*) AS samples, avg(confidence) AS confidence, "
            "avg(correct::INT) AS accuracy, sqrt(sum(confidence * (1 - confidence))) / count(*) AS spread "
            f"FROM {context.judged_predictions} WHERE correct IS NOT NULL AND confidence IS NOT NULL "
            f"GROUP BY predicted HAVING count(*) >= {_FEWEST} ORDER BY predicted"
        )
        rows = context.facts.typed_rows(ClassCalibration, query)
        # If confidence is calibrated, the hits of a class are a sum of independent draws with these probabilities.
        chances = [normal_tails((r["confidence"] - r["accuracy"]) / max(r["spread"], 0.5 / r["samples"])) for r in rows]
        for row, chance, sure in zip(rows, chances, holm(chances, context.options["significance"]), strict=True):
            gap = row["confidence"] - row["accuracy"]
            if sure and abs(gap) > context.options["max_class"]:
                yield Finding(
                    f"Where {row['name'] or row['predicted']} is predicted, the mean confidence is {row['confidence']:.1%}, "
                    f"and {row['accuracy']:.1%} of {row['samples']:,} samples are right (p {chance:.2g}): the model is "
                    f"{'over' if gap > 0 else 'under'}confident for this class.",
                    value=gap,
                    threshold=context.options["max_class"],
                    sql=query,
                )


def _was_trained_meanwhile(context: Context) -> bool:
    """Return whether the predictions are of samples that the run trained on, each by a model of other weights."""
    splits = [row["split"] for row in context.facts.epochs]
    judged = splits if context.judged_split is None else [context.judged_split]
    return not any(map(is_evaluation, judged)) and is_trained(context)


def best_temperature(logits: Array, labels: Array) -> tuple[float, float]:
    """Return the number by which logits, divided, make the labels likeliest, and the gain of their log-likelihood."""
    logits = logits - logits.max(axis=1, keepdims=True)
    own = logits[np.arange(len(labels)), labels]
    reached = [float((own / scale - np.log(np.exp(logits / scale).sum(axis=1))).sum()) for scale in _SCALES]
    best = int(np.argmax(reached))
    return _SCALES[best], reached[best] - reached[0]
