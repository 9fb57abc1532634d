"""`coverage`: every requested index was recorded exactly once, with all its stages and one prediction."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.checks.integrity import planned_draws, ranks
from audit.checks.shared.fingerprint import VISIT, distinct_indices, fingerprints, has_unique_visits, have_same_rows


class Coverage(Check):
    """Find missing and repeated rows in the record."""

    description = (
        "Every requested index was recorded exactly once, with all stages and one prediction; "
        "samples that a distributed sampler repeated as padding are found."
    )
    question = "Is every sample recorded once, with each stage and its prediction?"
    rule = (
        "the rows of the tables are counted and joined by visit; a sampler draws too few if an epoch's draws, at least "
        "half as many as there are samples, give at most a tenth of the different ones that they could; a stream gives too few items if "
        "another of its epochs gave more than twice as many"
    )
    assumes = "the sampler visits each sample (see the section on `coverage`)"
    options = settings(
        every_sample=Option(False, "Report every sample that no epoch of your own loop drew, for any sampler.")
    )

    def run(self, context: Context) -> Iterable[Finding]:
        yield from _find_missing(context)
        yield from planned_draws.find_short_streams(context)
        yield from _find_repeated(context)
        yield from ranks.find_padding(context)
        yield from _stages(context)
        if context.facts.counts.get("predictions"):
            yield from _predictions(context)


def _find_missing(context: Context) -> Iterable[Finding]:
    expected = context.run.expected
    if expected is None:
        yield from planned_draws.find_missing(context)
        return
    recorded = f"FROM samples WHERE run_id = {context.run_literal}"
    if context.value(f"SELECT {distinct_indices(expected)} {recorded}") == expected:
        return
    query = f"SELECT range AS index FROM range({expected}) WHERE range NOT IN (SELECT index {recorded})"
    for row in context.offenders(query):
        yield Finding(f"Sample {row['index']} was never recorded.", index=row["index"], sql=query)


def _find_repeated(context: Context) -> Iterable[Finding]:
    for table, noun in (("samples", "sample"), ("graded_predictions", "prediction")):
        if has_unique_visits(context, table):
            continue
        query = (
            f"SELECT epoch, index, visit, count(*) AS times FROM {table} WHERE run_id = {context.run_literal} "
            "GROUP BY epoch, index, visit HAVING count(*) > 1"
        )
        for row in context.offenders(query, "epoch, index"):
            yield Finding(
                f"The {noun} of index {row['index']} (epoch {row['epoch']}) was recorded {row['times']} times.",
                index=row["index"],
                value=row["times"],
                threshold=1,
                sql=context.evidence(table, row["index"]),
            )


def _stages(context: Context) -> Iterable[Finding]:
    """Report visits whose set of stages is rare and part of a common set: they lost some stages."""
    visits = (
        "SELECT epoch, index, visit, count(*) AS outputs, bit_or(1::BIGINT << least(stage, 61)) AS stages "
        f"FROM stage_outputs WHERE run_id = {context.run_literal} GROUP BY epoch, index, visit"
    )
    if _all_have_all_stages(context):
        return
    sets = context.rows(f"SELECT stages, outputs, count(*) AS visits FROM ({visits}) GROUP BY stages, outputs")
    total = sum(row["visits"] for row in sets)
    common = {row["stages"] for row in sets if row["visits"] >= max(2, 0.05 * total)}
    for found in sets:
        whole = [s for s in common if s != found["stages"] and s & found["stages"] == found["stages"]]
        doubled = found["outputs"] > found["stages"].bit_count() and len(context.facts.stages) < 62
        if not doubled and (found["stages"] in common or not whole):
            continue
        lost = [n for n in range(62) if not doubled and (whole[0] & ~found["stages"]) >> n & 1]
        yield from _find_incomplete(context, visits, found["stages"], found["outputs"], lost)
    if total < context.run.samples:
        yield from _without_stages(context)


def _select_succeeded(context: Context) -> str:
    """Return SQL for the samples of all splits that did not fail."""
    return f"(FROM samples WHERE run_id = {context.run_literal} AND status = 'ok')"


def _all_have_all_stages(context: Context) -> bool:
    """Return whether every stage has one output for each good sample; true in most runs, and cheap to check."""
    outputs = (
        f"(FROM stage_outputs WHERE run_id = {context.run_literal}) "
        f"ANTI JOIN (FROM samples WHERE run_id = {context.run_literal} AND status <> 'ok') USING ({VISIT})"
    )
    whole = fingerprints(context, VISIT, _select_succeeded(context))
    return all(found in whole for found in fingerprints(context, VISIT, outputs, "stage"))


def _find_incomplete(context: Context, visits: str, stages: int, outputs: int, lost: list[int]) -> Iterable[Finding]:
    query = (
        f"SELECT v.index, s.source FROM ({visits}) v JOIN {context.samples} s USING (epoch, index, visit) "
        f"WHERE v.stages = {stages} AND v.outputs = {outputs} AND s.status = 'ok'"
    )
    names = ", ".join(context.stage_name(number) for number in lost)
    for row in context.offenders(query):
        said = f"has no recorded output of {names}" if lost else "has several recorded outputs of one stage"
        yield Finding(
            f"{row['source']} (index {row['index']}) {said}.",
            index=row["index"],
            source=row["source"],
            stage=lost[0] if lost else None,
            sql=context.evidence("stage_outputs", row["index"]),
        )


def _without_stages(context: Context) -> Iterable[Finding]:
    query = (
        f"SELECT s.index, s.source FROM {context.samples} s ANTI JOIN "
        f"(FROM stage_outputs WHERE run_id = {context.run_literal}) USING (epoch, index, visit) WHERE s.status = 'ok'"
    )
    if not context.facts.counts.get("stage_outputs"):
        return
    for row in context.offenders(query):
        yield Finding(
            f"{row['source']} (index {row['index']}) has no recorded stage at all.",
            index=row["index"],
            source=row["source"],
            stage=0,
            sql=context.evidence("stage_outputs", row["index"]),
        )


def _predictions(context: Context) -> Iterable[Finding]:
    """Check that in an epoch and split with predictions exactly the samples that did not fail have one."""
    predictions = f"(FROM graded_predictions WHERE run_id = {context.run_literal})"
    if have_same_rows(context, VISIT, _select_succeeded(context), predictions):
        return
    # Of an input that was mixed from several samples there are predictions, and none that is graded.
    any_of_them = f"(FROM predictions WHERE run_id = {context.run_literal})"
    graded = (
        f"SELECT DISTINCT s.epoch, s.split FROM {context.samples} s SEMI JOIN {predictions} USING (epoch, index, visit)"
    )
    missing = (
        f"SELECT s.index, s.source FROM {context.samples} s ANTI JOIN {any_of_them} USING (epoch, index, visit) "
        f"WHERE s.status = 'ok' AND (s.epoch, coalesce(s.split, '')) IN "
        f"(SELECT (epoch, coalesce(split, '')) FROM ({graded}))"
    )
    whole = (
        f"SELECT 1 FROM {context.samples} s ANTI JOIN {any_of_them} USING (epoch, index, visit) WHERE s.status = 'ok'"
    )
    for row in context.offenders(missing) if context.rows(f"{whole} LIMIT 1") else ():
        yield Finding(
            f"{row['source']} (index {row['index']}) has no prediction.",
            index=row["index"],
            source=row["source"],
            sql=missing,
        )
    stray = f"SELECT p.index, p.epoch FROM {predictions} p ANTI JOIN {_select_succeeded(context)} USING (epoch, index, visit)"
    for row in context.offenders(stray, "epoch, index"):
        yield Finding(
            f"There is a prediction for index {row['index']} (epoch {row['epoch']}), but the sample failed or was not recorded.",
            index=row["index"],
            sql=stray,
        )
