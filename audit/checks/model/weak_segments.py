"""`weak_segments`: samples that share a property, such as being dark or small, are predicted much worse."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from audit.checks.base import CAUSES_OF_ERRORS, Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.significance import holm, two_rates, wilson
from audit.store.plain_arrays import numbers_of

#: The properties, by name: SQL over stage 0 (o) and samples (s), and words for messages.
_FACTS = {
    "brightness": ("o.mean", "mean brightness"),
    "contrast": ("o.std", "contrast"),
    "width": ("o.shape[2]", "width"),
    "aspect": ("o.shape[2] / nullif(o.shape[1], 0)", "aspect ratio"),
    "bytes": ("s.source_bytes", "file size"),
    "place": ("s.index", "place in the dataset"),
}
_PARTS = 4
#: The share of all classes that each quarter must have.
_CLASS_SHARE = 0.8


class Segment(TypedDict):
    """One quarter of the samples by one property, and how many of them, and of all, are predicted right."""

    fact: str
    low: float
    high: float
    samples: int
    hits: int
    total: int
    all_hits: int


class WeakSegments(Check):
    """Compare each quarter of each property with all other samples, corrected for the number of tests (Holm)."""

    description = "No quarter of the samples by brightness, contrast, width, aspect, file size or place in the dataset is predicted much worse."
    question = "Is a group of samples predicted worse?"
    statistic = "two rates (z test), Holm over 24 quarters"
    assumes = "independent samples"
    severity = "warning"
    follows = (*CAUSES_OF_ERRORS, "accuracy")
    needs = ("model", "labels", "same_labels", "pictures")
    options = settings(
        gap=Option(0.15, "Report a segment whose accuracy is lower than that of the others by at least this."),
        significance=Option(0.01, "The probability of any false finding among all segments."),
        samples=Option(120, "Check only if at least this many samples are graded."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        segments = _segments(context)
        graded = max((row["total"] for row in segments), default=0)
        if graded < context.options["samples"]:
            raise Skip(f"{graded} pictures are graded; at least {context.options['samples']} are needed")
        chances = [_chance(row) for row in segments]
        sure = holm(chances, context.options["significance"])
        judged = [
            (_accuracy_of_others(row) - row["hits"] / row["samples"], chance, row)
            for row, chance, is_sure in zip(segments, chances, sure, strict=True)
            if is_sure
        ]
        for gap, chance, row in sorted(judged, key=lambda one: -one[0]):
            if gap < context.options["gap"]:
                break
            share, others = row["hits"] / row["samples"], _accuracy_of_others(row)
            low, high = wilson(row["hits"], row["samples"])
            yield Finding(
                f"Of {row['samples']:,} samples with a {_FACTS[row['fact']][1]} from {row['low']:.4g} to {row['high']:.4g}, {share:.1%} are predicted right "
                f"(95 % interval {low:.1%} to {high:.1%}); of the others, {others:.1%} (p {chance:.2g}).",
                stage=0,
                value=share,
                threshold=others,
                sql=_query(context, row["fact"]),
            )


def _accuracy_of_others(row: Segment) -> float:
    return (row["all_hits"] - row["hits"]) / max(1, row["total"] - row["samples"])


def _chance(row: Segment) -> float:
    rest = row["total"] - row["samples"]
    return two_rates(row["hits"], row["samples"], row["all_hits"] - row["hits"], rest)


def _segments(context: Context) -> list[Segment]:
    """Return the quarters of each property, as `_query` finds them; all of them are found in one pass over the tables."""
    import numpy as np

    facts = ", ".join(f"coalesce(({fact})::FLOAT, 'NaN'::FLOAT) AS {name}" for name, (fact, _) in _FACTS.items())
    query = f"SELECT p.correct::UTINYINT AS correct, {facts} FROM {_join_conditions(context)}"
    batches = list(context.reader.sql(query, run=[context.run.run_id]).arrow_batches())
    found: list[Segment] = []
    for name in _FACTS if _are_classes_mixed(context) else [name for name in _FACTS if name != "place"]:
        values = np.concatenate([numbers_of(batch[name]) for batch in batches] or [np.empty(0)])
        right = np.concatenate([numbers_of(batch["correct"]) for batch in batches] or [np.empty(0, bool)])
        right, values = right[~np.isnan(values)].astype(bool), values[~np.isnan(values)]
        order = np.argsort(values)
        right, values = right[order], values[order]
        rank = np.searchsorted(values, values) / max(1, len(values) - 1)
        quarter = np.minimum(np.floor(rank * _PARTS), _PARTS - 1)
        for number in np.unique(quarter).tolist():
            begin, end = (int(np.searchsorted(quarter, number, side)) for side in ("left", "right"))
            hits = int(right[begin:end].sum())
            found.append(
                {
                    "fact": name,
                    "low": float(values[begin]),
                    "high": float(values[end - 1]),
                    "samples": end - begin,
                    "hits": hits,
                    "total": len(values),
                    "all_hits": int(right.sum()),
                }
            )
    return found


def _are_classes_mixed(context: Context) -> bool:
    """Return whether each quarter of the dataset has most classes: where they follow each other, a place is a class."""
    last = f"(SELECT max(index) + 1 FROM {context.samples})"
    query = f"SELECT count(DISTINCT label) AS classes FROM {context.samples}"
    parts = context.rows(f"{query} GROUP BY index * {_PARTS} // {last}")
    every = context.value(query)
    return bool(parts) and min(row["classes"] for row in parts) >= _CLASS_SHARE * every


def _join_conditions(context: Context) -> str:
    return (
        f"{context.judged_predictions} p JOIN {context.samples} s USING (epoch, index, visit) "
        f"JOIN (FROM {context.outputs} WHERE stage = 0 AND kind = 'image' AND len(shape) >= 2) o USING (epoch, index, visit) "
        "WHERE p.correct IS NOT NULL"
    )


def _query(context: Context, name: str) -> str:
    """Return SQL for the quarters of one property: their range, samples and hits. Equal values share a quarter."""
    ranked = (
        f"SELECT {_FACTS[name][0]} AS fact, p.correct, percent_rank() OVER (ORDER BY {_FACTS[name][0]}) AS rank "
        f"FROM {_join_conditions(context)} AND {_FACTS[name][0]} IS NOT NULL"
    )
    return (
        f"SELECT '{name}' AS fact, min(fact) AS low, max(fact) AS high, count(*) AS samples, "
        "sum(correct::INT)::BIGINT AS hits, sum(count(*)) OVER ()::BIGINT AS total, "
        "sum(sum(correct::INT)) OVER ()::BIGINT AS all_hits "
        f"FROM ({ranked}) GROUP BY least(floor(rank * {_PARTS}), {_PARTS - 1}) ORDER BY low"
    )
