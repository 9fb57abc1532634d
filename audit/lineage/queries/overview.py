"""Counts of one run: confusion, per class, confidence, loss, stage timings, failures, findings.

Each function is one question over one run, made so that a million samples are scanned once. A run page, a
report and a notebook ask these; none of them holds SQL. Numbers that are not finite are left out of sums
and counted on their own, because one NaN would swallow an average.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from typing import TypedDict

from audit.lineage.failures import SAME_ERROR
from audit.records import Run, Stage
from audit.store.read.reader import Reader
from audit.store.sql_literal import literal


class ConfusionCell(TypedDict):
    """How often samples of one class were predicted as one class; None where there was no prediction."""

    label: int
    predicted: int | None
    count: int


class ClassSummary(TypedDict):
    """The graded samples of one class."""

    label: int
    samples: int
    wrong: int
    recall: float | None
    precision: float | None
    mean_confidence: float | None
    mean_loss: float | None


#: Predictions whose confidence lies between two numbers.
ConfidenceBin = TypedDict(
    "ConfidenceBin",
    {"from": float, "to": float, "count": int, "accuracy": float | None, "confidence": float | None},
)
#: Predictions whose loss lies between two numbers.
LossBin = TypedDict("LossBin", {"from": float, "to": float, "count": int, "wrong": int})


class RunCounts(TypedDict):
    """The counts of one epoch of a run."""

    predictions: int
    graded: int
    wrong: int
    accuracy: float | None
    classes: dict[int, str]
    confusion: list[ConfusionCell]
    per_class: list[ClassSummary]
    confidence: list[ConfidenceBin]
    loss: list[LossBin]
    nonfinite: int


class CountedGroup(TypedDict):
    """Predictions that have the same classes, or lie in the same bin of confidence or loss; `which` says which."""

    which: int
    label: int | None
    predicted: int | None
    confidence_bin: int | None
    loss_bin: int | None
    label_name: str | None
    predicted_name: str | None
    count: int
    correct: int
    graded: int
    confidence: float | None
    loss: float | None
    losses: int


class StageTiming(TypedDict):
    """How long a stage took, and how often it changed its input."""

    stage: int
    path: str | None
    name: str
    random: bool | None
    outputs: int
    mean_microseconds: float | None
    max_microseconds: float | None
    changed: float | None
    #: The splits whose samples pass the stage, if not all do.
    splits: list[str]


class FailureSummary(TypedDict):
    """Samples that failed at the same stage with the same error, and the first of them."""

    failed_stage: str | None
    error: str | None
    count: int
    index: int
    epoch: int
    visit: int
    source: str | None


class FindingSummary(TypedDict):
    """What a check found, without its evidence."""

    check_name: str
    severity: str
    status: str
    message: str
    index: int | None
    source: str | None
    stage: int | None
    value: float | None
    threshold: float | None
    #: How many findings the check has with this status.
    total: int
    #: The visit that it is about, where several loaders number their samples alike; else None.
    epoch: int | None
    visit: int | None


#: The default of the check `calibration`, so that both state one error.
CONFIDENCE_BINS = 15
#: Bins of the loss histogram for each factor of ten.
LOSS_BINS_PER_DECADE = 4
_SMALLEST_LOSS = 1e-4

# Names are asked for only where the run does not list its classes: two columns of text cost as much as the rest.
_NAMES = ("any_value(label_name)", "any_value(predicted_name)")

_CLASS_COUNTS = f"""
    WITH binned AS (
        SELECT label, label_name, predicted, predicted_name, correct,
               CASE WHEN isfinite(confidence) THEN confidence END AS confidence,
               CASE WHEN isfinite(loss) THEN loss END AS loss
        FROM graded_predictions WHERE run_id = ? AND epoch = ?{{of}}
    ), keyed AS (
        -- least and greatest leave NULL out: what has no confidence or loss would be in a bin.
        SELECT *, CASE WHEN confidence IS NOT NULL THEN
                   least({CONFIDENCE_BINS - 1}, floor(confidence * {CONFIDENCE_BINS}))::INT END AS confidence_bin,
               CASE WHEN loss IS NOT NULL THEN
                   floor(log10(greatest(loss, {_SMALLEST_LOSS})) * {LOSS_BINS_PER_DECADE})::INT END AS loss_bin
        FROM binned
    )
    SELECT grouping_id(label, confidence_bin, loss_bin) AS which, label, predicted, confidence_bin, loss_bin,
           {{label_name}} AS label_name, {{predicted_name}} AS predicted_name, count(*) AS count,
           count(*) FILTER (correct) AS correct, count(correct) AS graded, sum(confidence) AS confidence,
           sum(loss) AS loss, count(loss) AS losses
    FROM keyed GROUP BY GROUPING SETS ((label, predicted), (confidence_bin), (loss_bin))
"""
#: grouping_id has a bit for each column that is not grouped by: label, confidence_bin, loss_bin from the left.
_BY_CLASS, _BY_CONFIDENCE, _BY_LOSS = 0b011, 0b101, 0b110


def last_epoch(reader: Reader, run: Run) -> int:
    """Return the epoch that `run.accuracy` is of: the last complete one, else the newest; 0 where there is none."""
    if run.last_epoch is not None:
        return run.last_epoch
    found = reader.sql("SELECT max(epoch) FROM samples WHERE run_id = ?", parameters=[run.run_id]).fetchone()
    return int(found[0]) if found and found[0] is not None else 0


def of_split(run: Run, epoch: int, split: str | None) -> str:
    """Return the SQL condition that keeps the visits of one split of an epoch; nothing for all splits."""
    if split is None:
        return ""
    chosen = f"run_id = {literal(run.run_id)} AND epoch = {int(epoch)} AND split = {literal(split)}"
    return f" AND (index, visit) IN (SELECT (index, visit) FROM samples WHERE {chosen})"


def splits(reader: Reader, run: Run, epoch: int) -> list[str]:
    """Return the named splits of an epoch, if it has several."""
    query = "SELECT DISTINCT split FROM samples WHERE run_id = ? AND epoch = ? ORDER BY split"
    found = reader.sql(query, parameters=[run.run_id, epoch]).fetchall()
    return [split for (split,) in found if split is not None] if len(found) > 1 else []


def counts(reader: Reader, run: Run, epoch: int, split: str | None = None) -> RunCounts:
    """Return the confusion, the scores of each class, confidence bins and loss bins of one epoch, or of one split of it, in one scan."""
    label_name, predicted_name = ("NULL", "NULL") if run.classes else _NAMES
    of = of_split(run, epoch, split)
    query = _CLASS_COUNTS.format(label_name=label_name, predicted_name=predicted_name, of=of)
    rows = reader.sql(query, parameters=[run.run_id, epoch]).rows(CountedGroup)
    by_class = [row for row in rows if row["which"] == _BY_CLASS]
    graded = sum(row["graded"] for row in by_class)
    right = sum(row["correct"] for row in by_class)
    predictions = sum(row["count"] for row in by_class)
    return {
        "predictions": predictions,
        "graded": graded,
        "wrong": graded - right,
        "accuracy": right / graded if graded else None,
        "classes": _class_names(run, by_class),
        "confusion": _confusion(by_class),
        "per_class": _per_class(by_class),
        "confidence": _confidence(rows),
        "loss": _loss(rows),
        "nonfinite": predictions - sum(r["losses"] for r in by_class) if graded else 0,
    }


def _confusion(by_class: list[CountedGroup]) -> list[ConfusionCell]:
    cells: list[ConfusionCell] = [
        {"label": row["label"], "predicted": row["predicted"], "count": row["count"]}
        for row in by_class
        if row["graded"] and row["label"] is not None
    ]
    return sorted(cells, key=lambda cell: (cell["label"], cell["predicted"] if cell["predicted"] is not None else -1))


def _class_names(run: Run, by_class: list[CountedGroup]) -> dict[int, str]:
    names = dict(enumerate(run.classes or []))
    for row in by_class:
        for number, name in ((row["label"], row["label_name"]), (row["predicted"], row["predicted_name"])):
            if number is not None and number not in names:
                names[number] = name if name is not None else str(number)
    return names


def _per_class(by_class: list[CountedGroup]) -> list[ClassSummary]:
    of_label: dict[int, list[CountedGroup]] = {}
    predicted: Counter[int] = Counter()
    for row in by_class:
        if row["label"] is not None:
            of_label.setdefault(row["label"], []).append(row)
        if row["predicted"] is not None:
            predicted[row["predicted"]] += row["count"]
    return [_class_summary(label, rows, predicted[label]) for label, rows in sorted(of_label.items())]


def _class_summary(label: int, rows: list[CountedGroup], predicted: int) -> ClassSummary:
    samples, correct = sum(row["graded"] for row in rows), sum(row["correct"] for row in rows)
    losses = sum(row["losses"] for row in rows)
    return {
        "label": label,
        "samples": samples,
        "wrong": samples - correct,
        "recall": correct / samples if samples else None,
        "precision": correct / predicted if predicted else None,
        "mean_confidence": sum(row["confidence"] or 0.0 for row in rows) / samples if samples else None,
        "mean_loss": sum(row["loss"] or 0.0 for row in rows) / losses if losses else None,
    }


def _confidence(rows: list[CountedGroup]) -> list[ConfidenceBin]:
    """Return the bins of a confidence histogram, each with its accuracy: a reliability curve too."""
    found = {row["confidence_bin"]: row for row in rows if row["which"] == _BY_CONFIDENCE}
    if set(found) <= {None}:
        return []
    bins: list[ConfidenceBin] = []
    for number in range(CONFIDENCE_BINS):
        row = found.get(number)
        bins.append(
            {
                "from": number / CONFIDENCE_BINS,
                "to": (number + 1) / CONFIDENCE_BINS,
                "count": row["count"] if row else 0,
                "accuracy": row["correct"] / row["graded"] if row and row["graded"] else None,
                "confidence": (row["confidence"] or 0.0) / row["count"] if row else None,
            }
        )
    return bins


def calibration_error(bins: list[ConfidenceBin]) -> float | None:
    """Return the expected calibration error: how far confidence and accuracy are apart, weighted by how often."""
    gaps = [
        (b["count"], abs(b["accuracy"] - b["confidence"]))
        for b in bins
        if b["count"] and b["accuracy"] is not None and b["confidence"] is not None
    ]
    total = sum(count for count, _ in gaps)
    return sum(count * gap for count, gap in gaps) / total if total else None


def _loss(rows: list[CountedGroup]) -> list[LossBin]:
    found = {row["loss_bin"]: row for row in rows if row["which"] == _BY_LOSS and row["loss_bin"] is not None}
    if not found:
        return []
    smallest = math.floor(math.log10(_SMALLEST_LOSS) * LOSS_BINS_PER_DECADE)
    return [
        {
            "from": 0.0 if number == smallest else 10 ** (number / LOSS_BINS_PER_DECADE),
            "to": 10 ** ((number + 1) / LOSS_BINS_PER_DECADE),
            "count": found[number]["count"] if number in found else 0,
            "wrong": found[number]["graded"] - found[number]["correct"] if number in found else 0,
        }
        for number in range(min(found), max(found) + 1)
    ]


def timings(reader: Reader, run: Run, epoch: int) -> list[StageTiming]:
    """Return each stage: how long it took, on average and at most, how often it changed its input, and for which splits."""
    splits = stage_splits(reader, run, epoch)
    found = reader.sql(
        """
        SELECT o.stage, any_value(s.path) AS path, any_value(o.name) AS name, any_value(s.random) AS random,
               count(*) AS outputs, avg(microseconds) AS mean_microseconds, max(microseconds) AS max_microseconds,
               avg(changed::INT) AS changed, []::VARCHAR[] AS splits
        FROM stage_outputs o LEFT JOIN (FROM stages WHERE run_id = ?) s ON s.stage = o.stage
        WHERE o.run_id = ? AND o.epoch = ? GROUP BY o.stage ORDER BY o.stage
        """,
        parameters=[run.run_id, run.run_id, epoch],
    ).rows(StageTiming)
    for row in found:
        row["splits"] = splits.get(row["stage"], [])
    return found


def stage_splits(reader: Reader, run: Run, epoch: int) -> dict[int, list[str]]:
    """Return the splits of each stage that only some of an epoch's splits pass: loaders may have pipelines of their own."""
    known = splits(reader, run, epoch)
    if not known:
        return {}
    rows = reader.sql(
        """
        SELECT stage, list_sort(list(DISTINCT split)) FROM (FROM stage_outputs WHERE run_id = ? AND epoch = ?) o
        JOIN (FROM samples WHERE run_id = ? AND epoch = ? AND split IS NOT NULL) s ON s.index = o.index AND s.visit = o.visit
        GROUP BY stage
        """,
        parameters=[run.run_id, epoch, run.run_id, epoch],
    ).fetchall()
    return {stage: names for stage, names in rows if names != known}


def failures(reader: Reader, run: Run, limit: int = 50) -> list[FailureSummary]:
    """Return samples that could not be read or transformed, by stage and error, with the first of each."""
    if not run.failed:
        return []
    return reader.sql(
        f"""
        SELECT failed_stage, arg_min(error, index) AS error, count(*) AS count, min(index) AS index,
               arg_min(epoch, index) AS epoch, arg_min(visit, index) AS visit, arg_min(source, index) AS source
        FROM samples WHERE run_id = ? AND status = 'failed'
        GROUP BY failed_stage, {SAME_ERROR} ORDER BY count DESC, index LIMIT ?
        """,
        parameters=[run.run_id, limit],
    ).rows(FailureSummary)


def findings(reader: Reader, run: Run, limit: int = 400, each: int = 3) -> list[FindingSummary]:
    """Return what the checks found, the worst first: at most `each` findings of a check."""
    found = reader.sql(
        """
        SELECT check_name, severity, status, message, index, source, stage, value, threshold,
               NULL::BIGINT AS epoch, NULL::BIGINT AS visit, count(*) OVER (PARTITION BY check_name, status) AS total
        FROM findings WHERE run_id = ?
        QUALIFY row_number() OVER (PARTITION BY check_name, status ORDER BY index NULLS FIRST) <= ?
        ORDER BY list_position(['fail', 'error', 'skip', 'pass'], status) NULLS FIRST,
                 list_position(['error', 'warning', 'info'], severity) NULLS FIRST, check_name, index NULLS FIRST LIMIT ?
        """,
        parameters=[run.run_id, each, limit],
    ).rows(FindingSummary)
    if len(run.recipe.get("loaders") or ()) > 1:
        _add_visits(reader, run, found)
    return found


def _add_visits(reader: Reader, run: Run, found: list[FindingSummary]) -> None:
    """Add to each finding the last visit of its very sample: loaders of one run may have samples of the same index."""
    listed = ", ".join(str(index) for index in sorted({row["index"] for row in found if row["index"] is not None}))
    if not listed:
        return
    rows = reader.sql(
        "SELECT index, source, max(epoch), arg_max(visit, (epoch, visit)) FROM samples "
        f"WHERE run_id = ? AND index IN ({listed}) GROUP BY index, source",
        parameters=[run.run_id],
    ).fetchall()
    visits = {(index, source): (epoch, visit) for index, source, epoch, visit in rows}
    for row in found:
        if (row["index"], row["source"]) in visits:
            row["epoch"], row["visit"] = visits[row["index"] or 0, row["source"]]


def stages(reader: Reader, run: Run) -> list[Stage]:
    """Return the pipeline: every stage with its parameters."""
    return reader.rows(Stage, run.run_id, order="stage")


class Mistakes:
    """The wrong predictions of one epoch by index and visit, to step from one to the next without asking again."""

    def __init__(self, reader: Reader, run: Run, epoch: int) -> None:
        rows = reader.sql(
            "SELECT index, visit FROM graded_predictions WHERE run_id = ? AND epoch = ? AND NOT correct ORDER BY index, visit",
            parameters=[run.run_id, epoch],
        ).fetchall()
        # Plain numbers: there may be as many mistakes as samples.
        self._indices, self._visits = array("q", (row[0] for row in rows)), array("q", (row[1] for row in rows))

    def __len__(self) -> int:
        return len(self._indices)

    def find_neighbours(self, index: int, visit: int) -> tuple[dict[str, int] | None, dict[str, int] | None]:
        """Return the mistake before and the one after, each with its index and visit."""
        places, here = range(len(self)), (index, visit)
        before, after = bisect_left(places, here, key=self._key), bisect_right(places, here, key=self._key)
        return self._at(before - 1), self._at(after)

    def _key(self, place: int) -> tuple[int, int]:
        return self._indices[place], self._visits[place]

    def _at(self, place: int) -> dict[str, int] | None:
        return {"index": self._indices[place], "visit": self._visits[place]} if 0 <= place < len(self) else None
