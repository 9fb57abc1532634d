"""`class_order`: the classes of the dataset and of the model are in different orders."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TypedDict

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.each_split import judge_each_split
from audit.checks.shared.label_columns import find_changed_columns
from audit.checks.shared.significance import binomial_tail
from audit.class_names import show_class

#: A swap is reported only where guessing would show it less often than this.
_CHANCE_LIMIT = 0.001


class PredictedClass(TypedDict):
    """How often samples of one label were predicted as one class."""

    label: int
    predicted: int
    count: int


class ClassOrder(Check):
    """Look for class names sorted as text, and for a permutation of classes that explains the predictions."""

    description = (
        "Class names that are numbers in text order, a permutation of classes that raises accuracy sharply, or, of several "
        "labels, two exchanged, one inverted or all shifted."
    )
    question = "Are classes swapped or shifted, in all predictions or in one split?"
    statistic = (
        "binomial tail of the predictions that fit the other class, or the next one, times the number of pairs of "
        "classes; of a permutation of fewer than 5 samples for each class, Chernoff's bound of that tail, times the "
        "number of permutations; where a sample has several labels, the correlation of predictions and targets: 0.5 with another "
        "label, another row or inverted, and less than half of it as they are"
    )
    assumes = "predictions are independent"
    needs = ("model", "same_labels")
    # An input that is inverted or scaled otherwise turns classes into each other; a probe shows which it is.
    follows = ("probe",)
    options = settings(
        gain=Option(0.2, "Report a permutation that raises the accuracy by at least this."),
        permuted_accuracy=Option(0.6, "Report a permutation only if its accuracy is at least this."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        if context.run.task == "multilabel":
            yield from judge_each_split(context, find_changed_columns)
            return
        if not any(row["labels"] for row in context.facts.epochs) or context.facts.regression:
            raise Skip("the run has no labels that are classes")
        yield from _names(context)
        yield from judge_each_split(context, self._judge)

    def _judge(self, context: Context, predictions: str, where: str) -> Iterable[Finding]:
        query = (
            f"SELECT label, predicted, count(*) AS count FROM {predictions} "
            "WHERE label >= 0 AND predicted IS NOT NULL GROUP BY label, predicted ORDER BY label, predicted"
        )
        rows = context.facts.typed_rows(PredictedClass, query)
        labels = {row["label"] for row in rows}
        size = max((max(row["label"], row["predicted"]) for row in rows), default=-1) + 1
        total = sum(row["count"] for row in rows)
        if len(labels) < 2:
            return
        before = sum(row["count"] for row in rows if row["label"] == row["predicted"]) / total
        if shifted := _find_shift(context, rows, size, before, query, where):
            yield shifted
            return
        reached = _count_possible_hits(rows) / total
        if size > 2_000 or not self._is_large(context, total, before, reached):
            yield from _find_swaps(context, rows, query, where)
            return
        order = _best_order(rows, size)
        after = sum(row["count"] for row in rows if order[row["predicted"]] == row["label"]) / total
        enough = total >= 5 * len(labels) or _is_unlikely(rows, len(labels), after)
        if not enough or not self._is_large(context, total, before, after):
            yield from _find_swaps(context, rows, query, where)
            return
        seen = {row["predicted"] for row in rows}
        moved = [(p, order[p]) for p in range(size) if order[p] != p and p in seen]
        gained = {(row["predicted"], row["label"]): row["count"] for row in rows}
        moved.sort(key=lambda pair: gained.get(pair, 0) < 0.1 * max(gained.values()))
        classes = context.run.classes or []
        # Names of classes may be numbers: an output without a class is called by its own.
        named = [f"output {p}" if p >= len(classes) > 0 else show_class(classes, p) for p, _ in moved[:5]]
        listed = ", ".join(
            f"{name} means {show_class(classes, q)}" for name, (_, q) in zip(named, moved[:5], strict=True)
        )
        yield Finding(
            f"Accuracy would rise{where} from {before:.1%} to {after:.1%} if classes were permuted: "
            f"what is predicted as {listed}{' …' if len(moved) > 5 else ''}. "
            "The model was trained with another class order.",
            value=after,
            threshold=before,
            sql=query,
        )

    def _is_large(self, context: Context, total: int, before: float, after: float) -> bool:
        """Return whether a permutation's accuracy is high, and enough above the plain one."""
        # If a model guesses, some permutation is better by chance; fewer samples make this more likely.
        gained = after - before >= max(context.options["gain"], 3 / math.sqrt(total))
        return bool(gained and after >= context.options["permuted_accuracy"])


def _count_possible_hits(rows: list[PredictedClass]) -> int:
    """Return how many predictions can be right at most if each predicted class meant its commonest label."""
    most: dict[int, int] = {}
    for row in rows:
        most[row["predicted"]] = max(most.get(row["predicted"], 0), row["count"])
    return sum(most.values())


def _is_unlikely(rows: list[PredictedClass], labels: int, share: float) -> bool:
    """Return whether a model that guesses would so often fit any permutation of few samples in fewer than 1 of 1,000 runs."""
    by_label: Counter[int] = Counter()
    by_prediction: Counter[int] = Counter()
    for row in rows:
        by_label[row["label"]] += row["count"]
        by_prediction[row["predicted"]] += row["count"]
    total = by_label.total()
    # Whatever a model that guesses prefers: it hits no more often than by the commonest class.
    guess = max(*by_label.values(), *by_prediction.values()) / total
    # One sample of each class fits some permutation in any case: only the others tell.
    tried, hits = total - labels, share * total - labels
    if tried <= 0 or hits / tried <= guess:
        return False
    share = min(1.0, hits / tried)
    # Chernoff's bound of the binomial tail, in logarithms: both numbers are beyond those of a computer.
    apart = share * math.log(share / guess)
    if share < 1:
        apart += (1 - share) * math.log((1 - share) / (1 - guess))
    return math.lgamma(labels + 1) - tried * apart < math.log(_CHANCE_LIMIT)


def _find_shift(
    context: Context, rows: list[PredictedClass], size: int, before: float, query: str, where: str
) -> Finding | None:
    """Return a finding if every class is predicted as its neighbour; few samples are enough to show it."""
    total = sum(row["count"] for row in rows)
    if size < 5 or total < 10:
        return None
    for step in (1, -1):
        share = sum(row["count"] for row in rows if row["predicted"] == (row["label"] + step) % size) / total
        if share >= context.options["permuted_accuracy"] and share - before >= context.options["gain"]:
            classes = context.run.classes or []
            # A model that guesses agrees with the neighbours of a few labels by chance; two neighbours are tried.
            if 2 * binomial_tail(round(share * total), total, 1 / size) >= _CHANCE_LIMIT:
                continue
            return Finding(
                f"Classes are shifted by one{where}: {share:.0%} of {total:,} predictions are the class "
                f"{'after' if step > 0 else 'before'} the label, such as {show_class(classes, step % size)} for "
                f"{show_class(classes, 0)}, and {before:.0%} the label itself. Labels and outputs count from different "
                "numbers, or one class was left out.",
                value=share,
                threshold=before,
                sql=query,
            )
    return None


def _find_swaps(context: Context, rows: list[PredictedClass], query: str, where: str) -> Iterable[Finding]:
    """Report pairs of classes that are predicted as each other, even if the total accuracy changes little."""
    counts = {(row["label"], row["predicted"]): row["count"] for row in rows}
    totals: dict[int, int] = {}
    for row in rows:
        totals[row["label"]] = totals.get(row["label"], 0) + row["count"]
    share = context.options["permuted_accuracy"]
    classes = context.run.classes or []
    guess = 1 / max(2, len({row["predicted"] for row in rows}))
    large = sum(total >= 5 for total in totals.values())
    if large < 2:
        text = "swapped classes were not looked for: no two classes have 5 samples"
        if text not in context.notes:
            context.note(text)
    #: Of many pairs of classes some are taken for each other by chance.
    pairs = max(1, large * (large - 1) // 2)
    for (label, predicted), count in sorted(counts.items()):
        other = counts.get((predicted, label), 0)
        if label >= predicted or min(totals[label], totals.get(predicted, 0)) < 5:
            continue
        if count < share * totals[label] or other < share * totals[predicted]:
            continue
        # Where the other classes are wrong too, something else is, and makes classes look like each other.
        if len(totals) > 2 and _accuracy_of_others(counts, totals, {label, predicted}) < share / 2:
            continue
        # A model that guesses takes a few samples of two classes for each other by chance.
        if binomial_tail(count + other, totals[label] + totals[predicted], guess) * pairs < _CHANCE_LIMIT:
            yield Finding(
                f"{show_class(classes, label)} and {show_class(classes, predicted)} are predicted as each other{where}, in {count} of "
                f"{totals[label]} and {other} of {totals[predicted]} samples: the two classes are swapped.",
                value=(count + other) / (totals[label] + totals[predicted]),
                threshold=share,
                sql=query,
            )


def _accuracy_of_others(counts: dict[tuple[int, int], int], totals: dict[int, int], pair: set[int]) -> float:
    """Return the accuracy of the samples whose label is not one of a pair."""
    rest = {label: total for label, total in totals.items() if label not in pair}
    return sum(counts.get((label, label), 0) for label in rest) / sum(rest.values())


def _names(context: Context) -> Iterable[Finding]:
    classes = context.run.classes or []
    if len(classes) < 2 or not all(name.isdecimal() for name in classes):
        return
    numbers = [int(name) for name in classes]
    if numbers == sorted(numbers) or list(classes) != sorted(classes):
        return
    at = next(n for n, number in enumerate(numbers) if number != sorted(numbers)[n])
    yield Finding(
        f"The class names are numbers sorted as text: label {at} means {classes[at]}, not {sorted(numbers)[at]}. "
        "A model that was trained with numeric order predicts the wrong names.",
        value=at,
        sql=f"SELECT classes FROM runs WHERE run_id = {context.run_literal}",
        severity="warning",
    )


def _best_order(rows: list[PredictedClass], size: int) -> dict[int, int]:
    """Return the likeliest label of each predicted class, each label once: by scipy, or else greedily by count."""
    try:
        import numpy as np
        from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

        table = np.zeros((size, size))
        for row in rows:
            table[row["predicted"], row["label"]] = row["count"]
        # On a tie the class itself wins, so that unseen classes do not count as permuted.
        table += np.eye(size) * 1e-6
        predicted, label = linear_sum_assignment(table, maximize=True)
        return dict(zip(predicted.tolist(), label.tolist(), strict=True))
    except ImportError:
        order: dict[int, int] = {}
        for row in sorted(rows, key=lambda row: -row["count"]):
            if row["predicted"] not in order and row["label"] not in order.values():
                order[row["predicted"]] = row["label"]
        free = sorted(set(range(size)) - set(order.values()))
        rest = [p for p in range(size) if p not in order]
        return order | {p: p if p in free else -1 for p in rest}
