"""What one run came to, counted: confusion, per class, confidence, loss, stage timings, failures, findings.

Each function is one question over one run, made so that a million samples are scanned once. A run page, a
report and a notebook ask these; none of them holds SQL. Numbers that are not finite are left out of sums
and counted on their own, because one NaN would swallow an average.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from typing import Any

from audit.records import Run
from audit.store.read.reader import Reader

CONFIDENCE_BINS = 20
#: Bins of the loss histogram for each factor of ten.
LOSS_BINS_PER_DECADE = 4
_SMALLEST_LOSS = 1e-4

# Names are asked for only where the run does not list its classes: two columns of text cost as much as the rest.
_NAMES = ("any_value(label_name)", "any_value(predicted_name)")

_COUNTED = f"""
    WITH binned AS (
        SELECT label, label_name, predicted, predicted_name, correct,
               CASE WHEN isfinite(confidence) THEN confidence END AS confidence,
               CASE WHEN isfinite(loss) THEN loss END AS loss
        FROM graded_predictions WHERE run_id = ? AND epoch = ?
    ), keyed AS (
        SELECT *, least({CONFIDENCE_BINS - 1}, floor(confidence * {CONFIDENCE_BINS}))::INT AS confidence_bin,
               floor(log10(greatest(loss, {_SMALLEST_LOSS})) * {LOSS_BINS_PER_DECADE})::INT AS loss_bin
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


def counts(reader: Reader, run: Run, epoch: int) -> dict[str, Any]:
    """Confusion, per class, confidence bins and loss bins of one epoch, in one scan."""
    label_name, predicted_name = ("NULL", "NULL") if run.classes else _NAMES
    query = _COUNTED.format(label_name=label_name, predicted_name=predicted_name)
    rows = reader.sql(query, parameters=[run.run_id, epoch]).dicts()
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
        "confusion": sorted(
            ({"label": r["label"], "predicted": r["predicted"], "count": r["count"]} for r in by_class if r["graded"]),
            key=lambda cell: (cell["label"], cell["predicted"] if cell["predicted"] is not None else -1),
        ),
        "per_class": _per_class(by_class),
        "confidence": _confidence(rows),
        "loss": _loss(rows),
        "nonfinite": predictions - sum(r["losses"] for r in by_class) if graded else 0,
    }


def _class_names(run: Run, by_class: list[dict[str, Any]]) -> dict[int, str]:
    names = dict(enumerate(run.classes or []))
    for row in by_class:
        for number, name in ((row["label"], row["label_name"]), (row["predicted"], row["predicted_name"])):
            if number is not None and number not in names:
                names[number] = name if name is not None else str(number)
    return names


def _per_class(by_class: list[dict[str, Any]]) -> list[dict[str, Any]]:
    gathered: dict[int, dict[str, Any]] = {}
    predicted: dict[int, int] = {}
    for row in by_class:
        if row["predicted"] is not None:
            predicted[row["predicted"]] = predicted.get(row["predicted"], 0) + row["count"]
        if row["label"] is None:
            continue
        into = gathered.setdefault(
            row["label"],
            {"label": row["label"], "samples": 0, "correct": 0, "confidence": 0.0, "loss": 0.0, "losses": 0},
        )
        into["samples"] += row["graded"]
        into["correct"] += row["correct"]
        into["confidence"] += row["confidence"] or 0.0
        into["loss"] += row["loss"] or 0.0
        into["losses"] += row["losses"]
    return [
        {
            "label": label,
            "samples": row["samples"],
            "wrong": row["samples"] - row["correct"],
            "recall": row["correct"] / row["samples"] if row["samples"] else None,
            "precision": row["correct"] / predicted[label] if predicted.get(label) else None,
            "mean_confidence": row["confidence"] / row["samples"] if row["samples"] else None,
            "mean_loss": row["loss"] / row["losses"] if row["losses"] else None,
        }
        for label, row in sorted(gathered.items())
    ]


def _confidence(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How sure, how often, and how often right: a histogram and a reliability curve in one."""
    found = {row["confidence_bin"]: row for row in rows if row["which"] == _BY_CONFIDENCE}
    if set(found) <= {None}:
        return []
    bins = []
    for number in range(CONFIDENCE_BINS):
        row = found.get(number)
        bins.append(
            {
                "from": number / CONFIDENCE_BINS,
                "to": (number + 1) / CONFIDENCE_BINS,
                "count": row["count"] if row else 0,
                "accuracy": row["correct"] / row["graded"] if row and row["graded"] else None,
                "confidence": row["confidence"] / row["count"] if row else None,
            }
        )
    return bins


def calibration_error(bins: list[dict[str, Any]]) -> float | None:
    """The expected calibration error: how far confidence and accuracy are apart, weighted by how often."""
    judged = [b for b in bins if b["count"] and b["accuracy"] is not None]
    total = sum(b["count"] for b in judged)
    return sum(b["count"] * abs(b["accuracy"] - b["confidence"]) for b in judged) / total if total else None


def _loss(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
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


def timings(reader: Reader, run: Run, epoch: int) -> list[dict[str, Any]]:
    """Each stage: how long it took, on average and at most, and how often it changed its input."""
    return reader.sql(
        """
        SELECT o.stage, any_value(s.path) AS path, any_value(o.name) AS name, any_value(s.random) AS random,
               count(*) AS outputs, avg(microseconds) AS mean_microseconds, max(microseconds) AS max_microseconds,
               avg(changed::INT) AS changed
        FROM stage_outputs o LEFT JOIN (FROM stages WHERE run_id = ?) s ON s.stage = o.stage
        WHERE o.run_id = ? AND o.epoch = ? GROUP BY o.stage ORDER BY o.stage
        """,
        parameters=[run.run_id, run.run_id, epoch],
    ).dicts()


def failures(reader: Reader, run: Run, limit: int = 50) -> list[dict[str, Any]]:
    """Samples that could not be read or transformed, by stage and error, with the first of each."""
    if not run.failed:
        return []
    return reader.sql(
        """
        SELECT failed_stage, error, count(*) AS count, min(index) AS index, arg_min(epoch, index) AS epoch,
               arg_min(visit, index) AS visit, arg_min(source, index) AS source
        FROM samples WHERE run_id = ? AND status = 'failed'
        GROUP BY failed_stage, error ORDER BY count DESC, index LIMIT ?
        """,
        parameters=[run.run_id, limit],
    ).dicts()


def findings(reader: Reader, run: Run, limit: int = 200) -> list[dict[str, Any]]:
    """What the checks found, failures first."""
    return reader.sql(
        """
        SELECT check_name, severity, status, message, index, source, stage, value, threshold FROM findings
        WHERE run_id = ? ORDER BY list_position(['fail', 'error', 'skip', 'pass'], status) NULLS FIRST,
              severity, check_name, index LIMIT ?
        """,
        parameters=[run.run_id, limit],
    ).dicts()


def stages(reader: Reader, run: Run) -> list[dict[str, Any]]:
    """The pipeline: every stage with its parameters."""
    return reader.rows("stages", run.run_id, order="stage")


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

    def around(self, index: int, visit: int) -> tuple[dict[str, int] | None, dict[str, int] | None]:
        """The mistake before and the one after, each with its index and visit."""
        places, here = range(len(self)), (index, visit)
        before, after = bisect_left(places, here, key=self._key), bisect_right(places, here, key=self._key)
        return self._at(before - 1), self._at(after)

    def _key(self, place: int) -> tuple[int, int]:
        return self._indices[place], self._visits[place]

    def _at(self, place: int) -> dict[str, int] | None:
        return {"index": self._indices[place], "visit": self._visits[place]} if 0 <= place < len(self) else None
