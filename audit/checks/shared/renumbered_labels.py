"""Classes that have another number in the batches than in the items: whether predictions can be judged against the labels.

A model that is trained on the numbers of the batches predicts them, while its predictions are graded against the labels of the items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from audit.checks.context import Context
from audit.texts import enumerate_some

#: A class has another number if at least so many of its samples have the same other number.
_FEWEST_ALIKE = 2
#: So many pairs of numbers are named.
_MOST_NAMED = 4


class LabelPair(TypedDict):
    """How many samples of a split have one label in their item, and one in their batch."""

    split: str | None
    label: int
    batch_label: int
    samples: int


def read_label_pairs(context: Context) -> list[LabelPair]:
    """Return how often each label came with each number in a batch, where both were recorded."""
    query = (
        f"SELECT split, label, batch_label, count(*) AS samples FROM {context.samples} "
        "WHERE batch_label IS NOT NULL AND label IS NOT NULL GROUP BY ALL ORDER BY ALL"
    )
    if query not in context.facts.cache:
        context.facts.cache[query] = context.facts.typed_rows(LabelPair, query)
    found: list[LabelPair] = context.facts.cache[query]
    return found


def batch_numbers(pairs: Sequence[LabelPair]) -> set[int]:
    """Return the numbers that the labels have in the batches."""
    return {pair["batch_label"] for pair in pairs}


def find_ignored(pairs: Sequence[LabelPair]) -> set[int]:
    """Return the numbers of a split's batches that stand for no label: those below 0, or one above all labels that takes the place of several."""
    labels, ignored = {pair["label"] for pair in pairs}, {number for number in batch_numbers(pairs) if number < 0}
    kept = [pair for pair in pairs if pair["batch_label"] not in ignored]
    others = batch_numbers(kept) - labels
    if not is_renumbered(kept) and len(others) == 1 and max(others) > max(labels):
        ignored |= others
    return ignored


def is_renumbered(pairs: Sequence[LabelPair]) -> bool:
    """Return whether each label of a split became one number in all batches, which shows in several samples of most labels."""
    alike = [pair["samples"] >= _FEWEST_ALIKE for pair in pairs]
    return len({pair["label"] for pair in pairs}) == len(pairs) and 2 * sum(alike) >= len(pairs)


def find_moved(pairs: Sequence[LabelPair]) -> list[LabelPair]:
    """Return the labels of a split that have another number in the batches; none if the labels are not renumbered throughout."""
    ignored = find_ignored(pairs)
    kept = [pair for pair in pairs if pair["batch_label"] not in ignored]
    return [pair for pair in kept if pair["label"] != pair["batch_label"]] if is_renumbered(kept) else []


def describe_moved(moved: Sequence[LabelPair]) -> str:
    """Return words for the numbers that labels have in the batches."""
    return enumerate_some([f"{pair['label']} → {pair['batch_label']}" for pair in moved], _MOST_NAMED)


def why_not_judged(context: Context) -> str | None:
    """Return why predictions cannot be judged against the labels of the items, or None."""
    pairs = read_label_pairs(context)
    for split in dict.fromkeys(pair["split"] for pair in pairs):
        if moved := find_moved([pair for pair in pairs if pair["split"] == split]):
            of_split = f" of {split}" if split else ""
            return (
                f"a collate function gives the labels{of_split} other numbers ({describe_moved(moved)}), and predictions are graded against "
                "those of the items; pass label= to run.loader, a function of the item that returns the number in the batch"
            )
    return None
