"""`leakage`: content shared between splits, or with another run."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import EVALUATION, Context
from audit.checks.data.near_duplicates import splits_of
from audit.checks.shared.content import contents, contents_of, select_recurring
from audit.checks.shared.copies import Copy, copies, copies_of
from audit.checks.shared_facts import RunFacts


class Leakage(Check):
    """Report content that is both in training data and in evaluation data."""

    description = (
        "Content that is in several splits, or also in another run (such as the one on training data); "
        "pictures that are changed copies are warnings."
    )
    options = settings(
        other=Option("", "Another run of the store; its content must not be in this run."),
        pictures=Option(10_000, "Look for changed copies among at most this many pictures; 0 compares all."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        splits = [row["split"] for row in context.facts.epochs if row["split"] is not None]
        other = context.options["other"]
        if len(splits) < 2 and not other:
            raise Skip("there is only one split and no other run to compare with; set the option `other` to a run")
        if len(splits) > 1:
            yield from _splits(context)
        if other:
            yield from _find_in_other_runs(context, context.reader.run(other).run_id)
        if any(row["stage"] == 0 and row["kind"] == "image" for row in context.profile):
            yield from self._changed_copies(context, other, len(splits) > 1)

    def _changed_copies(self, context: Context, other: str, several: bool) -> Iterable[Finding]:
        most = context.options["pictures"]
        try:
            if several:
                yield from _copies_between_splits(context, copies(context, most))
            if other:
                run = context.reader.run(other)
                there = Context(RunFacts(context.reader, run), context.options)
                yield from _copies_of_another_run(context, copies_of(context, there, most), run.run_id)
        except Skip as skipped:
            context.note(f"changed copies were not looked for: {skipped}")


def _copies_between_splits(context: Context, found: list[Copy]) -> Iterable[Finding]:
    split = splits_of(context, found)
    for copy in found:
        sides = [(copy.picture, split.get(copy.picture.source)), (copy.original, split.get(copy.original.source))]
        if sides[0][1] == sides[1][1] or None in (sides[0][1], sides[1][1]):
            continue
        # What is evaluated must be new: the finding is at the picture of the evaluation split.
        sides.sort(key=lambda side: str(side[1]).lower() not in EVALUATION)
        (one, one_split), (two, two_split) = sides
        yield Finding(
            f"{one.source} (index {one.index}, split {one_split}) {copy.said} {two.source} (index {two.index}, "
            f"split {two_split}).",
            index=one.index,
            source=one.source,
            stage=0,
            value=copy.similarity,
            sql=f"SELECT index, source, split, label FROM samples WHERE run_id = {context.run_literal} "
            f"AND index IN ({one.index}, {two.index})",
            severity="warning",
        )


def _copies_of_another_run(context: Context, found: list[Copy], other: str) -> Iterable[Finding]:
    for copy in found:
        here, there = copy.picture, copy.original
        yield Finding(
            f"{here.source} (index {here.index}) {copy.said} {there.source} (index {there.index}) of the run {other}.",
            index=here.index,
            source=here.source,
            stage=0,
            value=copy.similarity,
            sql=context.evidence("samples", here.index),
            severity="warning",
        )


def _splits(context: Context) -> Iterable[Finding]:
    shared = (
        f"SELECT content, list_sort(list(DISTINCT split)) AS splits, arg_min(source, split) AS first, "
        f"min(split) AS home FROM {select_recurring(context)} "
        "WHERE split IS NOT NULL GROUP BY content HAVING count(DISTINCT split) > 1"
    )
    query = (
        f"SELECT s.index, s.source, s.split, d.splits, d.first FROM {select_recurring(context)} s "
        f"JOIN ({shared}) d USING (content) WHERE s.split <> d.home"
    )
    for row in context.offenders(query):
        yield Finding(
            f"{row['source']} (index {row['index']}, split {row['split']}) has the same content as {row['first']}: "
            f"it is in the splits {', '.join(row['splits'])}.",
            index=row["index"],
            source=row["source"],
            stage=0,
            value=len(row["splits"]),
            threshold=1,
            sql=context.evidence("samples", row["index"]),
        )


def _find_in_other_runs(context: Context, other: str) -> Iterable[Finding]:
    query = (
        f"SELECT s.index, s.source, o.source AS there FROM {contents(context)} s JOIN "
        f"(SELECT content, min(source) AS source FROM {contents_of(other)} "
        "WHERE content IS NOT NULL GROUP BY content) o USING (content)"
    )
    for row in context.offenders(query, runs=[other]):
        yield Finding(
            f"{row['source']} (index {row['index']}) has the same content as {row['there']} of the run {other}.",
            index=row["index"],
            source=row["source"],
            stage=0,
            sql=query,
        )
