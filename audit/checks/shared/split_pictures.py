"""Search for what was done to the pictures of one split as a whole: a mark, or a turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from audit.checks.base import Finding, Skip
from audit.checks.context import Context
from audit.checks.shared.added_marks import find_mark
from audit.checks.shared.hashes import Array
from audit.checks.shared.picture_signatures import signatures
from audit.checks.shared.turned_groups import TurnedGroup, find_turn
from audit.class_names import show_class

#: A mark on many pictures of one split makes its pixels exceed their neighbours by so many standard deviations more than in others.
_MARK_LIMIT = 0.3


@dataclass(frozen=True)
class SplitThumbnails:
    """Thumbnails of the pictures of some splits, with the number of the split and the label of each."""

    pixels: Array
    splits: Array
    labels: Array

    @classmethod
    def of(cls, context: Context, splits: Sequence[str]) -> SplitThumbnails:
        """Return those of all pictures with enough detail; none if the samples are not pictures, or cannot be read."""
        try:
            is_picture = any(row["stage"] == 0 and row["kind"] == "image" for row in context.profile)
            given = signatures(context, context.options["pictures"]) if is_picture else None
        except Skip:
            given = None
        if given is None:
            return cls(np.empty((0, 32, 32), np.uint8), np.empty(0, np.int64), np.empty(0, object))
        known = {
            (row["split"], row["index"]): (splits.index(row["split"]), row["label"])
            for row in context.query_once(select_splits(context))
            if row["split"] in splits
        }
        places = [n for n, one in enumerate(given.pictures) if one.sample in known]
        pairs = [known[given.pictures[n].sample] for n in places]
        labels = np.empty(len(pairs), object)
        labels[:] = [label for _, label in pairs]
        return cls(given.thumbnails[places], np.array([split for split, _ in pairs], np.int64), labels)


def select_splits(context: Context) -> str:
    """Return a query for the samples of all splits."""
    return f"SELECT index, source, split, label FROM {context.items} WHERE split IS NOT NULL"


def find_marked_split(context: Context, splits: Sequence[str]) -> Iterable[Finding]:
    """Report a watermark or logo on many pictures of one split."""
    given = SplitThumbnails.of(context, splits)
    found = find_mark(given.pixels, given.splits, _MARK_LIMIT) if len(given.pixels) else None
    if found is not None:
        yield Finding(
            f"Many pictures of the split {splits[found.group]} have a mark that the others do not have: in a thumbnail of 32×32, in the rows "
            f"{found.rows[0]} to {found.rows[1]} and columns {found.columns[0]} to {found.columns[1]}, pixels exceed their neighbours by "
            f"{found.effect:.1f} standard deviations more.",
            stage=0,
            value=found.effect,
            threshold=_MARK_LIMIT,
            sql=select_splits(context),
        )


def find_turned_splits(context: Context, splits: Sequence[str]) -> Iterable[Finding]:
    """Report pictures of a split, or of one class in a split, that are turned or mirrored against the largest split."""
    given = SplitThumbnails.of(context, splits)
    for number, split in enumerate(splits[1:], 1):
        here, there = given.splits == number, given.splits == 0
        turns: list[tuple[int | None, TurnedGroup | None]] = [
            (None, find_turn(given.pixels[there], given.pixels[here]))
        ]
        if turns[0][1] is None:
            turns = [
                (label, find_turn(given.pixels[there & same], given.pixels[here & same]))
                for label in sorted({int(label) for label in given.labels[here] if label is not None})
                if (same := given.labels == label).any()
            ]
        for label, turn in turns:
            if turn is not None:
                which = "" if label is None else f" of the class {show_class(context.run.classes, label)}"
                yield Finding(
                    f"The pictures{which} in the split {split} are {turn.description} against those in {splits[0]}.",
                    stage=0,
                    value=turn.place,
                    threshold=0.0,
                    sql=select_splits(context),
                )
