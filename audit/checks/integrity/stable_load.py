"""`stable_load`: a sample loads to another value at a later visit, although its source is the same."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Skip
from audit.checks.context import Context
from audit.store.sql_literal import literal


class StableLoad(Check):
    """Find samples that a stage changed in place in memory, and labels that move. Random loading is not checked."""

    description = "A sample loads to the same value at every visit, unless it draws random numbers, and always has the same label."
    question = "Does a sample load the same in each epoch, with the same label?"
    rule = (
        "the digests of `load` and the labels of one index are compared; where several datasets of a split number their samples, "
        "as the folds of a cross-validation may, an index may have one of each dataset"
    )
    assumes = "the source did not change"

    def run(self, context: Context) -> Iterable[Finding]:
        if context.facts.has_single_visits:
            raise Skip("no sample was visited twice")
        known = _select_known(context)
        if context.facts.streams and not context.value(f"SELECT count(*) FROM {known}"):
            raise Skip("a stream may have another order in each epoch: the place in it names no sample")
        yield from _find_moving_labels(context, known)
        stage = next((stage for stage in context.facts.stages if stage.stage == 0), None)
        if stage is None or stage.random:
            raise Skip("loading is random, or was not recorded")
        query = (
            f"SELECT index, source, count(DISTINCT digest) AS different, count(*) AS visits, {_count_samples(context)} AS samples "
            f"FROM (SELECT epoch, index, visit, digest FROM {context.outputs} WHERE stage = 0) "
            f"JOIN (SELECT epoch, index, visit, split, root, source, source_digest FROM {known}) "
            "USING (epoch, index, visit) "
            # A visit that drew random numbers may have drawn them while it loaded.
            f"ANTI JOIN (SELECT epoch, index, visit FROM rng WHERE run_id = {context.run_literal}) "
            "USING (epoch, index, visit) "
            "GROUP BY split, index, root, source, source_digest HAVING different > samples"
        )
        rows = context.offenders(query)
        found, total = len(rows) + context.unlisted, context.value(f"SELECT count(*) FROM {context.items}")
        several = context.has_one_cause(found, total)
        for row in rows[:1] if several else rows:
            context.unlisted = 0 if several else context.unlisted
            which = f" The same holds for {found - 1:,} more of {total:,} samples." if several else ""
            yield Finding(
                f"{row['source']} (index {row['index']}) was loaded {row['visits']} times and gave {row['different']} "
                f"different values{_describe_samples(row['samples'])}, without drawing random numbers: a stage may change it in place.{which}",
                index=row["index"],
                source=row["source"],
                stage=0,
                value=row["different"],
                threshold=row["samples"],
                sql=context.evidence("stage_outputs", row["index"], "stage = 0"),
            )


def _select_known(context: Context) -> str:
    """Return SQL for the visits whose index names the same sample in every epoch."""
    if not context.facts.streams:
        return context.samples
    of_stream = " OR ".join(f"split IS NOT DISTINCT FROM {literal(split)}" for split in context.facts.streams)
    return f"(FROM {context.samples} WHERE NOT (({of_stream}) AND starts_with(source, 'dataset://')))"


def _count_samples(context: Context) -> str:
    """Return SQL for how many samples may have the split, index and source of a group: those of several datasets may share a number."""
    several = context.facts.several_datasets.items()
    cases = " ".join(f"WHEN split IS NOT DISTINCT FROM {literal(split)} THEN {count}" for split, count in several)
    return f"(CASE WHEN NOT starts_with(source, 'dataset://') THEN 1 {cases} ELSE 1 END)"


def _describe_samples(samples: int) -> str:
    return f" in {samples} datasets" if samples > 1 else ""


def _find_moving_labels(context: Context, visits: str) -> Iterable[Finding]:
    """Report samples whose label is another one in a later epoch."""
    query = (
        "SELECT split, index, source, count(DISTINCT label) AS different, min(label) AS one, max(label) AS other, "
        f"{_count_samples(context)} AS samples "
        f"FROM {visits} WHERE label IS NOT NULL GROUP BY split, index, root, source HAVING different > samples"
    )
    rows = context.offenders(query)
    total = context.value(f"SELECT count(*) FROM {context.items} WHERE label IS NOT NULL") if rows else 0
    found = len(rows) + context.unlisted
    several = context.has_one_cause(found, total)
    for row in rows[:1] if several else rows:
        context.unlisted = 0 if several else context.unlisted
        which = f" The same holds for {found - 1:,} more of {total:,} samples." if several else ""
        yield Finding(
            f"{row['source']} (index {row['index']}) does not have the same label at every visit: {row['one']} and {row['other']}. Is the label "
            f"looked up by something else than the index?{which}",
            index=row["index"],
            source=row["source"],
            value=row["different"],
            threshold=row["samples"],
            sql=context.evidence("samples", row["index"]),
        )
