"""`label_issues`: labels that the model's own probabilities speak against, ranked by how strongly.

Confident learning (Northcutt et al., 2021) over what was recorded: a class's threshold is the mean probability that
its samples are given for it; a sample whose probability for another class passes that class's threshold, and passes
its own label's, is counted there. The tests hold this against the package cleanlab, which needs pandas and
scikit-learn and some gigabytes for a million samples; this is one pass over an array.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context


class LabelIssues(Check):
    """Warns only: a model that is confidently wrong looks the same as a label that is."""

    name = "label_issues"
    group = "model"
    description = "Labels that are probably wrong, by confident learning on the recorded probabilities; worst first."
    severity = "warning"
    needs = ("model", "labels")
    options = settings(
        min_confidence=Option(0.7, "Told when the other class has at least this probability."),
        margin=Option(0.6, "Doubtful in any case is a label that another class outdoes by this much."),
        min_accuracy=Option(0.6, "A model that agrees with fewer of the labels cannot judge them."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        agreed = context.value(f"SELECT avg(correct::INT) FROM {context.predictions} WHERE correct IS NOT NULL")
        if agreed is None or agreed < context.options["min_accuracy"]:
            raise Skip(f"the model agrees with {agreed or 0:.0%} of the labels, too few to judge them")
        ranked = label_issues(context, context.options["margin"])
        strong = [row for row in ranked if row["other"] >= context.options["min_confidence"]]
        context.note(f"{len(ranked):,} labels are doubtful, {len(strong):,} of them strongly")
        context.unlisted += max(0, len(strong) - context.most)
        context.name(strong[: context.most])
        classes = context.run.classes or []
        for row in strong[: context.most]:
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


def label_issues(context: Context, margin: float = 2.0) -> list[dict[str, Any]]:
    """Every doubtful label, most doubtful first: index, label, suggested, and the probability of both.

    A margin above 1 leaves confident learning to itself.
    """
    import numpy as np

    table = context.reader.sql(
        f"SELECT epoch, index, visit, label, probabilities FROM {context.predictions} "
        "WHERE label >= 0 AND label < len(probabilities) AND isfinite(list_sum(probabilities))",
        run=[context.run.run_id],
    ).arrow()
    if table.num_rows < 20:
        return []
    labels = table["label"].to_numpy()
    lists = table["probabilities"].combine_chunks()
    flat = lists.flatten().to_numpy(zero_copy_only=False)
    if len(flat) % len(labels):
        return []
    given = flat.reshape(len(labels), -1)
    rows = np.arange(len(labels))
    own = given[rows, labels]
    counts = np.bincount(labels, minlength=given.shape[1])
    sums = np.bincount(labels, weights=own, minlength=given.shape[1])
    # A class without samples has no threshold: nothing can be said to belong to it.
    thresholds = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf).astype(np.float32)
    confident = np.where(given >= thresholds, given, -1.0)
    suggested = confident.argmax(axis=1)
    best = given.argmax(axis=1)
    # Thresholds of a sure model are so high that a wrong label just below them would be missed.
    apart = (given[rows, best] - own >= margin) & (confident[rows, suggested] <= 0)
    suggested = np.where(apart, best, suggested)
    chosen = np.flatnonzero(((confident[rows, suggested] > 0) | apart) & (suggested != labels))
    # By the ratio, not the difference: a sure model's mistakes lie at 0.95, its wrong labels at 0.9999.
    ratio = np.maximum(own[chosen], np.float32(1e-12)) / given[chosen, suggested[chosen]]
    order = chosen[np.argsort(ratio, kind="stable")]
    keys = {key: table[key].to_numpy() for key in ("epoch", "index", "visit")}
    return [
        {
            **{key: int(column[n]) for key, column in keys.items()},
            "label": int(labels[n]),
            "suggested": int(suggested[n]),
            "own": float(own[n]),
            "other": float(given[n, suggested[n]]),
        }
        for n in order
    ]


CHECK = LabelIssues
