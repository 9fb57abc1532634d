"""Predictions that are not what they were: regressions, fixes and other changes, each with its cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from audit.lineage.diff.matching import Side
from audit.lineage.diff.mcnemar import p_value
from audit.store.read.scratch import Scratch, TempTable
from audit.store.sql_literal import literal

CAUSES = ("data", "labels", "pipeline", "model", "both", "undetermined")
_KINDS = {"regression": "regressions", "fix": "fixes", "change": "other_changes"}

_FLIP_ROWS = """
    SELECT source, coalesce(renamed_to, source) AS source_b, index_a, index_b, visit_a, visit_b, label_b AS label,
           label_name_b AS label_name, label_a, label_name_a, predicted_a, predicted_b, name_a AS predicted_name_a,
           name_b AS predicted_name_b, correct_a, correct_b,
           failed_a, failed_b, cause
    FROM {compared} WHERE flip = ? ORDER BY index_b, visit_b, index_a LIMIT ?
"""

# A matched sample is graded when both sides are: one that failed on one side only is not right there.
_IS_GRADED = "right_a IS NOT NULL AND right_b IS NOT NULL"

_PER_CLASS = """
    WITH a AS ({a}), b AS ({b}), flipped AS (
        SELECT {class_b} AS class, count(*) FILTER (flip = 'regression') AS regressions,
               count(*) FILTER (flip = 'fix') AS fixes
        FROM {compared} WHERE flip IS NOT NULL GROUP BY 1
    )
    SELECT class, coalesce(b.label, a.label) AS label, coalesce(a.samples, 0) AS samples_a,
           coalesce(b.samples, 0) AS samples_b, a.accuracy AS accuracy_a, b.accuracy AS accuracy_b,
           coalesce(regressions, 0) AS regressions, coalesce(fixes, 0) AS fixes
    FROM a FULL OUTER JOIN b USING (class) LEFT JOIN flipped USING (class) ORDER BY label, class
"""


class FlippedPrediction(TypedDict):
    """A matched sample whose prediction is not what it was."""

    source: str
    source_b: str
    index_a: int
    index_b: int
    visit_a: int
    visit_b: int
    label: int | None
    label_name: str | None
    label_a: int | None
    label_name_a: str | None
    predicted_a: int | None
    predicted_b: int | None
    predicted_name_a: str | None
    predicted_name_b: str | None
    correct_a: bool | None
    correct_b: bool | None
    failed_a: bool
    failed_b: bool
    cause: str


#: One class of both runs, as the matched samples have it.
ComparedClass = TypedDict(
    "ComparedClass",
    {
        "class": str,
        "label": int | None,
        "samples_a": int,
        "samples_b": int,
        "accuracy_a": float | None,
        "accuracy_b": float | None,
        "regressions": int,
        "fixes": int,
    },
)


@dataclass(slots=True)
class Flips:
    """The predictions that changed. Lists are cut at the number of rows asked for; counts never are.

    `accuracy_a` and `accuracy_b` are those of the matched samples, `run_accuracy_a` and `run_accuracy_b` of all.
    """

    counts: dict[str, dict[str, int]]
    lists: dict[str, list[FlippedPrediction]]
    accuracy_a: float | None
    accuracy_b: float | None
    run_accuracy_a: float | None
    run_accuracy_b: float | None
    predictions_a: int
    predictions_b: int
    graded: int
    per_class: list[ComparedClass] = field(default_factory=list)
    #: The split of the matched samples that `accuracy_a` and `accuracy_b` are of; None if they are of all.
    accuracy_split: str | None = None

    def total(self, kind: str) -> int:
        """Return how many `regressions`, `fixes` or `other_changes` there are, whatever their cause."""
        return sum(self.counts[kind].values())

    @property
    def mcnemar_p(self) -> float | None:
        """How likely so uneven a split is by chance; None when no pair could be graded."""
        return p_value(self.total("regressions"), self.total("fixes")) if self.graded else None


def find_flips(scratch: Scratch, compared: TempTable, a: Side, b: Side, rows: int) -> Flips:
    """Count and list the flips of the pairs that were compared."""
    counts = {kind: dict.fromkeys(CAUSES, 0) for kind in _KINDS.values()}
    query = f"SELECT flip, cause, count(*) FROM {compared} WHERE flip IS NOT NULL GROUP BY ALL"
    for flip, cause, count in scratch.rows(query):
        counts[_KINDS[flip]][cause] = count
    listed = _FLIP_ROWS.format(compared=compared)
    lists = {
        kind: scratch.typed_rows(FlippedPrediction, listed, [flip, rows]) if any(counts[kind].values()) else []
        for flip, kind in _KINDS.items()
    }
    split = b.run.accuracy_split if a.run.accuracy_split == b.run.accuracy_split else None
    graded = scratch.row(
        f"SELECT count(*), avg(right_a::INT), avg(right_b::INT) FROM {compared} WHERE {_IS_GRADED}{_of_split(b, split)}"
    )
    overall = [_accuracy(scratch, side) for side in (a, b)]
    return Flips(
        counts,
        lists,
        accuracy_a=graded[1],
        accuracy_b=graded[2],
        run_accuracy_a=overall[0][1],
        run_accuracy_b=overall[1][1],
        predictions_a=overall[0][0],
        predictions_b=overall[1][0],
        graded=graded[0],
        per_class=scratch.typed_rows(ComparedClass, _per_class(compared, a, b)) if graded[0] else [],
        accuracy_split=split,
    )


def _accuracy(scratch: Scratch, side: Side) -> tuple[int, float | None]:
    query = f"SELECT count(*), avg(correct::INT) FROM graded_predictions WHERE {side.rows}"
    count, accuracy = scratch.row(query)
    return count, accuracy if side.run.accuracy_split is None else side.run.accuracy


def _of_split(b: Side, split: str | None) -> str:
    """Return the condition that keeps the pairs of one split; nothing for all."""
    if split is None:
        return ""
    chosen = f"SELECT (index, visit) FROM samples WHERE {b.rows} AND split = {literal(split)}"
    return f" AND (index_b, visit_b) IN ({chosen})"


def _per_class(compared: TempTable, a: Side, b: Side) -> str:
    # Runs whose class lists differ number the same class differently: only names can be compared.
    named = bool(a.run.classes and b.run.classes)
    classes = [
        f"coalesce(label_name_{side}, label_{side}::VARCHAR)" if named else f"label_{side}::VARCHAR" for side in "ab"
    ]
    of_side = [
        f"SELECT {name} AS class, min(label_{side}) AS label, count(*) AS samples, avg(right_{side}::INT) AS accuracy "
        f"FROM {compared} WHERE {_IS_GRADED} AND label_{side} IS NOT NULL GROUP BY 1"
        for side, name in zip("ab", classes, strict=True)
    ]
    return _PER_CLASS.format(compared=compared, a=of_side[0], b=of_side[1], class_b=classes[1])
