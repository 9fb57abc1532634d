"""What a collate function made of the labels: whether the batch has each sample's own label.

A batch may have other labels on purpose: numbers that are ignored, classes that have other numbers or are merged. What is
surely wrong is that samples of one batch have each other's labels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypedDict

from audit.checks.base import Finding, Severity
from audit.checks.context import Context
from audit.checks.shared.renumbered_labels import LabelPair, batch_numbers, describe_moved, find_ignored, is_renumbered
from audit.store.sql_literal import literal

#: Batches whose labels are only arranged in another way by chance.
_CHANCE = 0.001
#: So many batches are looked at.
_MOST_BATCHES = 1_000
#: So many numbers are named.
_MOST_NAMED = 4


class ChangedLabel(TypedDict):
    """A sample that has another label in its batch."""

    index: int
    source: str | None
    label: int
    batch_label: int


def find_changed_labels(context: Context, pairs: Sequence[LabelPair]) -> Iterable[Finding]:
    """Report splits whose batches do not have the labels of their samples."""
    for split in dict.fromkeys(pair["split"] for pair in pairs):
        own = [pair for pair in pairs if pair["split"] == split]
        if any(pair["label"] != pair["batch_label"] for pair in own):
            yield from _judge_split(context, split, own)


def _judge_split(context: Context, split: str | None, pairs: list[LabelPair]) -> Iterable[Finding]:
    of_split = f" of {split}" if split else ""
    labels = {pair["label"] for pair in pairs}
    pairs = _leave_out_ignored(context, of_split, pairs)
    if all(pair["label"] == pair["batch_label"] for pair in pairs):
        return
    if is_renumbered(pairs):
        yield from _judge_numbers(context, of_split, pairs)
    elif batch_numbers(pairs) - labels:
        context.note(f"the batches{of_split} have other numbers than the items' labels; they were not compared")
    else:
        yield _report_changes(context, split, pairs)


def _leave_out_ignored(context: Context, of_split: str, pairs: list[LabelPair]) -> list[LabelPair]:
    """Return the pairs without numbers that stand for a label which is to be ignored, and note how many there are."""
    if ignored := find_ignored(pairs):
        count = sum(pair["samples"] for pair in pairs if pair["batch_label"] in ignored)
        listed = " or ".join(map(str, sorted(ignored)[:_MOST_NAMED]))
        context.note(f"{count:,} samples{of_split} have the number {listed} instead of a label in their batch")
    return [pair for pair in pairs if pair["batch_label"] not in ignored]


def _judge_numbers(context: Context, of_split: str, pairs: Sequence[LabelPair]) -> Iterable[Finding]:
    """Report classes that have each other's numbers; other new numbers are a note."""
    moved = [pair for pair in pairs if pair["label"] != pair["batch_label"]]
    listed = describe_moved(moved)
    if {pair["label"] for pair in moved} != {pair["batch_label"] for pair in moved}:
        context.note(
            f"a collate function gives the labels{of_split} other numbers ({listed}); predictions are graded against those of the "
            "items, unless label= of run.loader is a function that gives the same numbers"
        )
        return
    yield Finding(
        f"A collate function exchanges classes{of_split}: {listed}.",
        value=sum(pair["samples"] for pair in moved),
        threshold=0,
        severity="warning",
        sql=_evidence(context),
    )


def _report_changes(context: Context, split: str | None, pairs: Sequence[LabelPair]) -> Finding:
    total = sum(pair["samples"] for pair in pairs)
    count = sum(pair["samples"] for pair in pairs if pair["label"] != pair["batch_label"])
    row = _find_first(context, split)
    of_split = f" of {split}" if split else ""
    which = (
        f"{count:,} of {total:,} samples{of_split}, such as {row['source']} (index {row['index']}: {row['label']}, in the batch "
        f"{row['batch_label']})"
    )
    severity: Severity | None = None
    if _are_exchanged(context, split):
        text = f"A collate function exchanges labels: {which}, have the label of another sample of their batch. Are inputs or labels sorted or shuffled alone?"
    else:
        text = f"A collate function changes labels: {which}, have another label in their batch."
        severity = "warning"
    return Finding(
        text,
        index=row["index"],
        source=row["source"],
        value=count,
        threshold=0,
        severity=severity,
        sql=_evidence(context),
    )


def _find_first(context: Context, split: str | None) -> ChangedLabel:
    return context.facts.typed_rows(
        ChangedLabel,
        f"SELECT index, source, label, batch_label FROM {context.samples} WHERE split IS NOT DISTINCT FROM {_text(split)} "
        "AND batch_label >= 0 AND batch_label <> label ORDER BY epoch, index LIMIT 1",
    )[0]


def _are_exchanged(context: Context, split: str | None) -> bool:
    """Return whether each batch has the labels of its samples, only at other samples, in more batches than by chance."""
    rows = context.rows(
        "SELECT list_sort(list(label)) AS labels, labels = list_sort(list(batch_label)) AS same "
        f"FROM {context.samples} WHERE split IS NOT DISTINCT FROM {_text(split)} "
        "AND batch_label >= 0 AND batch_label <> label "
        f"GROUP BY epoch, batch ORDER BY epoch, batch LIMIT {_MOST_BATCHES}"
    )
    arranged = [row["labels"] for row in rows if row["same"]]
    return 20 * len(arranged) >= 19 * len(rows) and sum(map(_log_chance, arranged)) <= math.log(_CHANCE)


def _log_chance(labels: Sequence[int]) -> float:
    """Return the logarithm of the probability that labels drawn at random are these, in any order."""
    size, counts = len(labels), Counter(labels).values()
    orders = math.lgamma(size + 1) - sum(math.lgamma(count + 1) for count in counts)
    return orders + sum(count * math.log(count / size) for count in counts)


def _text(split: str | None) -> str:
    return "NULL" if split is None else literal(split)


def _evidence(context: Context) -> str:
    return (
        "SELECT epoch, batch, position, index, source, label, batch_label FROM samples "
        f"WHERE run_id = {context.run_literal} AND batch_label <> label"
    )
