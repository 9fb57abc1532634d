"""Predictions that are not what they were: regressions, fixes and other changes, each with its cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from audit.lineage.matching import Side
from audit.lineage.mcnemar import p_value
from audit.store.scratch import Scratch

CAUSES = ("data", "pipeline", "model")
_KINDS = {"regression": "regressions", "fix": "fixes", "change": "other_changes"}

_LISTED = """
    SELECT source, renamed_to AS source_b, index_a, index_b, visit_a, visit_b, label_b AS label,
           label_name_b AS label_name, label_a, label_name_a, predicted_a, predicted_b, name_a AS predicted_name_a,
           name_b AS predicted_name_b, correct_a, correct_b, cause
    FROM compared WHERE flip = ? ORDER BY index_b, visit_b, index_a LIMIT ?
"""

_PER_CLASS = """
    WITH a AS ({a}), b AS ({b}), flipped AS (
        SELECT {flipped} AS class, count(*) FILTER (flip = 'regression') AS regressions,
               count(*) FILTER (flip = 'fix') AS fixes
        FROM compared WHERE flip IS NOT NULL GROUP BY 1
    )
    SELECT class, coalesce(b.label, a.label) AS label, coalesce(a.samples, 0) AS samples_a,
           coalesce(b.samples, 0) AS samples_b, a.accuracy AS accuracy_a, b.accuracy AS accuracy_b,
           coalesce(regressions, 0) AS regressions, coalesce(fixes, 0) AS fixes
    FROM a FULL OUTER JOIN b USING (class) LEFT JOIN flipped USING (class) ORDER BY label, class
"""


@dataclass(slots=True)
class Flips:
    """What became of the predictions. Lists are cut at the number of rows asked for; counts never are."""

    counts: dict[str, dict[str, int]]
    lists: dict[str, list[dict[str, Any]]]
    accuracy_a: float | None
    accuracy_b: float | None
    predictions_a: int
    predictions_b: int
    graded: int
    matched_accuracy_a: float | None
    matched_accuracy_b: float | None
    per_class: list[dict[str, Any]] = field(default_factory=list)

    def total(self, kind: str) -> int:
        """How many `regressions`, `fixes` or `other_changes` there are, whatever their cause."""
        return sum(self.counts[kind].values())

    @property
    def mcnemar_p(self) -> float | None:
        """How likely so uneven a split is by chance; None when no pair could be graded."""
        return p_value(self.total("regressions"), self.total("fixes")) if self.graded else None


def find_flips(scratch: Scratch, a: Side, b: Side, rows: int) -> Flips:
    """Count and list the flips of the table `compared`."""
    counts = {kind: dict.fromkeys(CAUSES, 0) for kind in _KINDS.values()}
    query = "SELECT flip, cause, count(*) FROM compared WHERE flip IS NOT NULL GROUP BY ALL"
    for flip, cause, count in scratch.rows(query):
        counts[_KINDS[flip]][cause] = count
    lists = {kind: _listed(scratch, flip, rows) if any(counts[kind].values()) else [] for flip, kind in _KINDS.items()}
    graded = scratch.row(
        "SELECT count(*), avg(correct_a::INT), avg(correct_b::INT) FROM compared "
        "WHERE correct_a IS NOT NULL AND correct_b IS NOT NULL"
    )
    overall = [_accuracy(scratch, side) for side in (a, b)]
    return Flips(
        counts,
        lists,
        accuracy_a=overall[0][1],
        accuracy_b=overall[1][1],
        predictions_a=overall[0][0],
        predictions_b=overall[1][0],
        graded=graded[0],
        matched_accuracy_a=graded[1],
        matched_accuracy_b=graded[2],
        per_class=scratch.dicts(_per_class(a, b)) if all(count for count, _ in overall) else [],
    )


def _listed(scratch: Scratch, flip: str, rows: int) -> list[dict[str, Any]]:
    found = scratch.dicts(_LISTED, [flip, rows])
    for row in found:
        row["source_b"] = row["source_b"] or row["source"]
    return found


def _accuracy(scratch: Scratch, side: Side) -> tuple[int, float | None]:
    count, accuracy = scratch.row(f"SELECT count(*), avg(correct::INT) FROM predictions WHERE {side.rows}")
    return count, accuracy


def _per_class(a: Side, b: Side) -> str:
    # Runs whose class lists differ number the same class differently: only names can be compared.
    named = bool(a.run.classes and b.run.classes)
    name = "coalesce(label_name, label::VARCHAR)" if named else "label::VARCHAR"
    of_side = (
        f"SELECT {name} AS class, min(label) AS label, count(*) AS samples, avg(correct::INT) AS accuracy "
        "FROM predictions WHERE {rows} AND label IS NOT NULL GROUP BY 1"
    )
    flipped = "coalesce(label_name_b, label_b::VARCHAR)" if named else "label_b::VARCHAR"
    return _PER_CLASS.format(a=of_side.format(rows=a.rows), b=of_side.format(rows=b.rows), flipped=flipped)
