"""`loader_order`: a shuffling loader that repeats its order, or a dataset that lists its samples in another order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.training_steps import is_trained
from audit.split_names import is_evaluation
from audit.store.sql_literal import literal


class EpochOrder(TypedDict):
    """A fingerprint of the order in which one epoch drew the samples of a split."""

    split: str | None
    epoch: int
    samples: int
    drawn: int
    ordered: int


class MovedSources(TypedDict):
    """How many sources two runs share, and how many of them have another index."""

    shared: int
    moved: int
    index: int | None
    source: str | None


class LoaderOrder(Check):
    """Compare fingerprints of the order, epoch by epoch, and the indices of the sources with those of the baseline."""

    description = (
        "A shuffling loader draws another order in each epoch, training is not in the order of the labels, and the dataset "
        "lists its samples in the same order as in the baseline run."
    )
    question = (
        "Does the order of samples change between epochs? Is it the order of the labels, or another one than in the "
        "baseline?"
    )
    rule = "fingerprints of the order of each epoch; labels in the order in which they were drawn"
    # Where the generator of an augmentation starts again, so does the one that shuffles.
    follows = ("augmentation", "repeated_draws")
    severity = "warning"
    options = settings(samples=Option(20, "Check only splits with at least this many samples."))

    def run(self, context: Context) -> Iterable[Finding]:
        baseline = context.facts.baseline
        compared = baseline is not None and baseline.reader is not None
        repeats = any(row["first"] != row["last"] for row in context.facts.epochs)
        trained = is_trained(context)
        if not compared and not repeats and not trained:
            raise Skip("the run has one epoch, and there is no baseline run")
        if trained:
            yield from self._find_sorted(context)
        if repeats:
            yield from self._find_repeats(context)
        if baseline is not None and compared:
            yield from self._find_moved(context, baseline.run_id, baseline.name)

    def _find_sorted(self, context: Context) -> Iterable[Finding]:
        """Report training in the order of the labels: a batch then has one class, or two."""
        query = (
            "SELECT split, count(*) AS samples, count(DISTINCT label) AS classes, "
            "count(*) FILTER (label <> before) AS changes FROM ("
            "SELECT split, label, lag(label) OVER (PARTITION BY split ORDER BY batch, position) AS before "
            f"FROM {context.samples} WHERE label IS NOT NULL AND batch IS NOT NULL AND rank IS NULL AND epoch = "
            f"(SELECT min(epoch) FROM {context.samples})) GROUP BY split ORDER BY split"
        )
        for row in context.rows(query):
            if is_evaluation(row["split"]) or row["classes"] < 2:
                continue
            # In any other order the label changes nearly as often as there are samples.
            if row["samples"] >= 10 * row["classes"] and row["changes"] < 0.1 * row["samples"]:
                yield Finding(
                    f"The model was trained on {row['samples']:,} samples in the order of their labels: from one sample to the "
                    f"next the label changes only {row['changes']:,} times. Shuffle them.",
                    value=row["changes"],
                    threshold=0.1 * row["samples"],
                    sql=query,
                )

    def _find_repeats(self, context: Context) -> Iterable[Finding]:
        place = "(batch * 65536 + position)"
        query = (
            "SELECT split, epoch, count(*) AS samples, (sum(hash(index)) % 4294967291)::BIGINT AS drawn, "
            f"(sum(hash(index, rank_in_epoch)) % 4294967291)::BIGINT AS ordered FROM (SELECT split, epoch, index, "
            f"row_number() OVER (PARTITION BY split, epoch ORDER BY {place}) AS rank_in_epoch FROM {context.samples} "
            "WHERE batch IS NOT NULL AND rank IS NULL) GROUP BY split, epoch ORDER BY split, epoch"
        )
        by_split: dict[str | None, list[EpochOrder]] = {}
        for row in context.facts.typed_rows(EpochOrder, query):
            by_split.setdefault(row["split"], []).append(row)
        for split, rows in by_split.items():
            if len(rows) < 2 or rows[0]["samples"] < context.options["samples"]:
                continue
            same = len({(row["samples"], row["ordered"]) for row in rows}) == 1
            if same and _shuffles(context, split):
                where = f" of the split {split}" if split is not None else ""
                yield Finding(
                    f"The loader{where} shuffles, but drew its {rows[0]['samples']:,} samples in the same order in all "
                    f"{len(rows)} epochs: its generator is seeded again before each epoch.",
                    value=len(rows),
                    threshold=1,
                    sql=query,
                )

    def _find_moved(self, context: Context, before: str, name: str) -> Iterable[Finding]:
        def indices(run_id: str) -> str:
            return (
                "SELECT split, source, min(index) AS index FROM samples "
                f"WHERE run_id = {run_id} AND source IS NOT NULL AND root IS NOT NULL GROUP BY split, source"
            )

        old, new = indices(literal(before)), indices(context.run_literal)
        query = (
            "SELECT count(*) AS shared, count(*) FILTER (a.index <> b.index) AS moved, "
            "arg_min(b.index, b.index) FILTER (a.index <> b.index) AS index, "
            "arg_min(b.source, b.index) FILTER (a.index <> b.index) AS source "
            f"FROM ({old}) a JOIN ({new}) b ON a.source = b.source AND a.split IS NOT DISTINCT FROM b.split"
        )
        totals = context.rows(
            f"SELECT (SELECT count(*) FROM ({old})) AS old, (SELECT count(*) FROM ({new})) AS new", runs=[before]
        )[0]
        row = context.reader.sql(query, run=[context.run.run_id, before]).rows(MovedSources)[0]
        # Where files were added or removed, the others move by themselves.
        if row["moved"] and row["shared"] == totals["old"] == totals["new"] >= context.options["samples"]:
            yield Finding(
                f"{row['moved']:,} of {row['shared']:,} sources, such as {row['source']}, have another index than in {name}, although both runs have "
                f"the same sources: the dataset lists its files in an order that changes. Sort them.",
                index=row["index"],
                source=row["source"],
                value=row["moved"],
                threshold=0,
                sql=query,
            )


def _shuffles(context: Context, split: str | None) -> bool:
    """Return whether the loader of a split draws in random order, by the name of its sampler."""
    loaders = context.run.recipe.get("loaders") or []
    names = [str(one.get("sampler")) for one in loaders if one.get("split") == split]
    return bool(names) and all("Random" in name or "Distributed" in name for name in names)
