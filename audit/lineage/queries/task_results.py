"""The results of a run whose task is not one class for each sample: a few figures, and a table by class or by output.

Judged as the views of `store.task_views` judge; this only picks what a page can show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from audit.records import Run
from audit.store.read.reader import Reader

_MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class TaskResults:
    """Figures by name, and a table. Shares lie between 0 and 1."""

    task: str
    title: str
    figures: dict[str, float | None] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    #: The figures and columns that are shares.
    shares: tuple[str, ...] = ()


def task_results(reader: Reader, run: Run, epoch: int) -> TaskResults | None:
    """Return the results of one epoch; None for a run whose samples have one class each, or that has no model."""
    judge = _TASKS.get(run.task or "")
    found = judge(reader, run, epoch) if judge is not None else None
    return _heads(reader, run, epoch, found) if len(run.recipe.get("heads") or ()) > 1 else found


def _heads(reader: Reader, run: Run, epoch: int, first: TaskResults | None) -> TaskResults:
    """Return the table of all graded outputs, with the figures of the first."""
    query = f'SELECT head AS output, model, samples, graded, accuracy, mean_loss AS "mean loss" FROM heads {_OF} ORDER BY head'
    figures, shares = (first.figures, first.shares) if first is not None else ({}, ())
    table = _table(reader, run, epoch, query)
    return TaskResults(run.task or "heads", "Graded outputs", figures, *table, (*shares, "accuracy"))


def _table(reader: Reader, run: Run, epoch: int, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    columns: list[str] = []
    rows: list[tuple[Any, ...]] = []
    relation = reader.sql(f"{query} LIMIT {_MOST_ROWS}", parameters=[run.run_id, epoch])
    for columns, piece in relation.batches(_MOST_ROWS):  # noqa: B007 - the names come with each piece
        rows += piece
    return columns, rows


def _figures(reader: Reader, run: Run, epoch: int, query: str) -> dict[str, float | None]:
    columns, rows = _table(reader, run, epoch, query)
    return dict(zip(columns, rows[0], strict=True)) if rows else {}


_OF = "WHERE run_id = ? AND epoch = ?"
_NAME = "coalesce(class_name, class::VARCHAR) AS class"


def _detection(reader: Reader, run: Run, epoch: int) -> TaskResults:
    figures = _figures(
        reader, run, epoch, "SELECT sum(objects) AS objects, sum(tp) AS found, sum(fn) AS missed, sum(fp) AS \"false alarms\", "
        f"sum(tp) / nullif(sum(tp + fn), 0) AS recall, sum(tp) / nullif(sum(tp + fp), 0) AS precision FROM per_object_class {_OF}",
    )  # fmt: skip
    table = _table(
        reader, run, epoch, f"SELECT {_NAME}, objects, tp AS found, fn AS missed, fp AS \"false alarms\", recall, precision "
        f"FROM per_object_class {_OF} ORDER BY recall NULLS LAST, 1",
    )  # fmt: skip
    return TaskResults("detection", "Objects by class", figures, *table, ("recall", "precision"))


def _segmentation(reader: Reader, run: Run, epoch: int) -> TaskResults:
    query = (
        'SELECT avg(iou) AS "mean IoU", sum(shared_pixels) / nullif(sum(target_pixels), 0) AS "pixel accuracy" '
        f"FROM per_mask_class {_OF}"
    )
    table = _table(
        reader, run, epoch, f"SELECT {_NAME}, masks, target_pixels AS \"target pixels\", predicted_pixels AS \"predicted pixels\", "
        f"iou AS \"IoU\", accuracy FROM per_mask_class {_OF} ORDER BY iou NULLS LAST, 1",
    )  # fmt: skip
    shares = ("mean IoU", "pixel accuracy", "IoU", "accuracy")
    return TaskResults("segmentation", "Masks by class", _figures(reader, run, epoch, query), *table, shares)


def _multilabel(reader: Reader, run: Run, epoch: int) -> TaskResults:
    query = (
        'SELECT avg(recall) AS "mean recall", avg(precision) AS "mean precision", count(*) AS labels '
        f"FROM per_label {_OF}"
    )
    table = _table(
        reader, run, epoch, f"SELECT {_NAME}, positives, tp AS found, fn AS missed, fp AS \"false alarms\", recall, precision "
        f"FROM per_label {_OF} ORDER BY recall NULLS LAST, 1",
    )  # fmt: skip
    shares = ("mean recall", "mean precision", "recall", "precision")
    return TaskResults(
        "multilabel", "Labels, at a score above 0.5", _figures(reader, run, epoch, query), *table, shares
    )


def _regression(reader: Reader, run: Run, epoch: int) -> TaskResults:
    query = f"""
        SELECT n - 1 AS output, count(*) AS samples, avg(abs(residual[n])) AS "mean absolute error",
               sqrt(avg(residual[n] ** 2)) AS "root mean square error", avg(residual[n]) AS bias,
               CASE WHEN var_pop(target[n]) > 0 THEN 1 - avg(residual[n] ** 2) / var_pop(target[n]) END AS "R²"
        FROM (SELECT *, unnest(range(1, len(residual) + 1)) AS n FROM residuals {_OF})
        WHERE isfinite(residual[n]) GROUP BY n ORDER BY n
    """
    columns, rows = _table(reader, run, epoch, query)
    figures = {}
    if len(rows) == 1:
        figures = dict(zip(columns[2:], rows[0][2:], strict=True))
    return TaskResults("regression", "Errors by output", figures, columns, rows if len(rows) != 1 else [])


def _tokens(reader: Reader, run: Run, epoch: int) -> TaskResults:
    query = (
        "SELECT sum(tokens) AS tokens, sum(loss * tokens) / sum(tokens) AS loss, "
        f"exp(sum(loss * tokens) / sum(tokens)) AS perplexity, sum(accuracy * tokens) / sum(tokens) AS accuracy FROM sequences {_OF}"
    )
    table = _table(
        reader, run, epoch, f"SELECT index AS sample, source, tokens, loss, perplexity, accuracy FROM sequences {_OF} "
        "ORDER BY loss DESC NULLS LAST, index",
    )  # fmt: skip
    rows = table[1][:20]
    return TaskResults("tokens", "Worst sequences", _figures(reader, run, epoch, query), table[0], rows, ("accuracy",))


_TASKS: dict[str, Callable[[Reader, Run, int], TaskResults]] = {
    "detection": _detection,
    "segmentation": _segmentation,
    "multilabel": _multilabel,
    "regression": _regression,
    "tokens": _tokens,
}
