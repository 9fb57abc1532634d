"""`leakage`: content shared between splits, or with another run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.content import contents, contents_of, select_recurring
from audit.checks.shared.files import spread_evenly
from audit.checks.shared.picture_copies import Copy, copies, copies_of
from audit.checks.shared_facts import RunFacts
from audit.split_names import EVALUATION, is_evaluation
from audit.store.read.rows import QueryRow
from audit.store.sql_literal import literal

#: At most about this many texts are compared; shorter ones may have the same words by chance.
_TEXTS, _LONG_ENOUGH = 20_000, 20
_WORDS = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class _SharedSample:
    """One of two samples that have something in common."""

    index: int
    source: str
    split: str | None

    @property
    def name(self) -> str:
        """Return the words for the sample."""
        return _name(self.index, self.source, self.split)


class Leakage(Check):
    """Report content that is both in training data and in evaluation data."""

    description = (
        "Content that is in several splits, or also in another run (such as the one on training data); "
        "pictures that are changed copies, and texts with the same words, are warnings."
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
        if len(splits) > 1 and any(row["stage"] == 0 and row["kind"] == "text" for row in context.profile):
            yield from _find_rewritten_texts(context)
        if any(row["stage"] == 0 and row["kind"] == "image" for row in context.profile):
            yield from self._find_changed_copies(context, other, len(splits) > 1)

    def _find_changed_copies(self, context: Context, other: str, several: bool) -> Iterable[Finding]:
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
    for copy in found:
        one, two = (_SharedSample(side.index, side.source, side.split) for side in (copy.picture, copy.original))
        if one.split != two.split and None not in (one.split, two.split):
            yield _make_finding(context, one, two, f"{copy.description} {{}}.", copy.similarity)


def _find_rewritten_texts(context: Context) -> Iterable[Finding]:
    """Report texts of several splits that differ only in case, spaces and punctuation."""
    rows = context.rows(
        f"SELECT index, source, split, label, data FROM {context.items} JOIN payloads USING (run_id, epoch, index, visit) "
        f"JOIN (SELECT epoch, index, visit, bytes FROM {context.load_outputs} WHERE kind = 'text') o USING (epoch, index, visit) "
        # An excerpt does not say how the text goes on.
        "WHERE stage = 0 AND payloads.kind = 'text' AND form = 'preview' AND octet_length(data) = o.bytes "
        f"AND split IS NOT NULL AND {spread_evenly(_TEXTS, max(_TEXTS, context.run.samples))} ORDER BY split DESC, index"
    )
    known: dict[str, QueryRow] = {}
    for row in rows:
        words = " ".join(_WORDS.findall(row["data"].decode("utf-8", "replace").casefold()))
        first = known.setdefault(words, row)
        if len(words) < _LONG_ENOUGH or first["split"] == row["split"] or first["data"] == row["data"]:
            continue
        one, two = (_SharedSample(side["index"], side["source"], side["split"]) for side in (row, first))
        yield _make_finding(context, one, two, "has the same words as {}: only case, spaces or punctuation differ.")


def _make_finding(
    context: Context, one: _SharedSample, two: _SharedSample, said: str, value: float | None = None
) -> Finding:
    """Return the finding about two samples of different splits; `said` is what the first has in common with the second."""
    # What is evaluated must be new: the finding is at the sample of the evaluation split.
    one, two = sorted((one, two), key=lambda side: not is_evaluation(side.split))
    return Finding(
        _sentence(f"{one.name} {said.format(two.name)}"),
        index=one.index,
        source=one.source,
        stage=0,
        value=value,
        sql=f"SELECT index, source, split, label FROM samples WHERE run_id = {context.run_literal} "
        f"AND index IN ({one.index}, {two.index})",
        severity="warning",
    )


def _copies_of_another_run(context: Context, found: list[Copy], other: str) -> Iterable[Finding]:
    for copy in found:
        here, there = copy.picture, copy.original
        yield Finding(
            f"{here.source} (index {here.index}) {copy.description} {there.source} (index {there.index}) of the run {other}.",
            index=here.index,
            source=here.source,
            stage=0,
            value=copy.similarity,
            sql=context.evidence("samples", here.index),
            severity="warning",
        )


def _name(index: int, source: str, split: str | None) -> str:
    """Return the words for a sample; one without a file is known by its index alone, which several splits have."""
    if source.startswith("dataset://"):
        return f"sample {index} of the split {split} ({source})"
    return f"{source} (index {index}, split {split})"


def _sentence(text: str) -> str:
    """Return the text with a capital letter, unless it begins with a file."""
    return f"S{text[1:]}" if text.startswith("sample ") else text


def _splits(context: Context) -> Iterable[Finding]:
    """Report samples whose content another split has too. What is evaluated must be new: of two splits, it is reported for that one."""
    evaluated = f"lower(split) IN ({', '.join(map(literal, EVALUATION))})"
    shared = (
        "SELECT content, list_sort(list(DISTINCT split)) AS splits, "
        f"min({{'evaluated': {evaluated}, 'split': split, 'index': index, 'source': source}}) AS home "
        f"FROM {select_recurring(context)} WHERE split IS NOT NULL GROUP BY content HAVING count(DISTINCT split) > 1"
    )
    query = (
        f"SELECT s.index, s.source, s.split, d.splits, d.home FROM {select_recurring(context)} s "
        f"JOIN ({shared}) d USING (content) WHERE s.split <> d.home.split"
    )
    for row in context.offenders(query):
        home = row["home"]
        yield Finding(
            _sentence(
                f"{_name(row['index'], row['source'], row['split'])} has the same content as "
                f"{_name(home['index'], home['source'], home['split'])}: it is in the splits {', '.join(row['splits'])}."
            ),
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
