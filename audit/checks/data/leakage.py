"""`leakage`: content shared between splits, or with another run."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.content import contents, contents_of, recurring


class Leakage(Check):
    """Report content that is both in training data and in evaluation data."""

    name = "leakage"
    group = "data"
    description = "Content that is in several splits, or also in another run (such as the one on training data)."
    options = settings(other=Option("", "Another run of the store; its content must not be in this run."))

    def run(self, context: Context) -> Iterable[Finding]:
        splits = [row["split"] for row in context.facts.epochs if row["split"] is not None]
        other = context.options["other"]
        if len(splits) < 2 and not other:
            raise Skip("there is only one split and no other run to compare with; set the option `other` to a run")
        if len(splits) > 1:
            yield from _splits(context)
        if other:
            yield from _other(context, context.reader.run(other).run_id)


def _splits(context: Context) -> Iterable[Finding]:
    shared = (
        f"SELECT content, list_sort(list(DISTINCT split)) AS splits, arg_min(source, split) AS first, "
        f"min(split) AS home FROM {recurring(context)} "
        "WHERE split IS NOT NULL GROUP BY content HAVING count(DISTINCT split) > 1"
    )
    query = (
        f"SELECT s.index, s.source, s.split, d.splits, d.first FROM {recurring(context)} s "
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


def _other(context: Context, other: str) -> Iterable[Finding]:
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


CHECK = Leakage
