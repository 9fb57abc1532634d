"""The confusion matrix as plain data: a table for few classes, a grid of the cells that are not empty for hundreds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from audit.plainjson import JsonObject

#: Up to so many classes the matrix is a table with numbers; beyond, a grid of coloured cells.
TABLE_CLASSES = 30
_MOST_CLASSES = 2_000
_MOST_CELLS = 4_000
#: Beyond so many classes fewer cells are drawn, so that the page stays small.
_MANY, _MOST_OF_MANY = 400, 500
_MOST_TOGETHER = 600  # the order of more takes seconds to find
#: The names are written beside a grid of at most so many classes.
_MOST_NAMED = 80

ClassOrder = Literal["label", "worst", "together"]
ORDERS: dict[ClassOrder, str] = {"label": "label", "worst": "worst first", "together": "confused together"}

Cell = Mapping[str, Any]


def confusion_view(cells: Sequence[Cell], names: Mapping[int, str], order: ClassOrder = "label") -> JsonObject:
    """Return `matrix` (a table) or `grid`, whichever fits the number of classes; the other is None."""
    present = sorted({c["label"] for c in cells} | {c["predicted"] for c in cells if c["predicted"] is not None})
    if not 0 < len(present) <= _MOST_CLASSES:
        return {"matrix": None, "grid": None, "order": order}
    rows = _order_classes(present, cells, order)
    columns: list[int | None] = [*rows, *([None] if any(c["predicted"] is None for c in cells) else [])]
    if len(present) <= TABLE_CLASSES:
        return {"matrix": _table(cells, rows, columns, names), "grid": None, "order": order}
    return {"matrix": None, "grid": _grid(cells, rows, columns, names), "order": order}


def cell_condition(label: int, predicted: int | None) -> str:
    """Return the SQL condition that picks the samples of one cell."""
    return f"label = {label} AND predicted {'IS NULL' if predicted is None else f'= {predicted}'}"


def predicted_name(predicted: int | None, names: Mapping[int, str]) -> str:
    """Return the name of the predicted class; a model with NaN logits predicted nothing."""
    return "not finite" if predicted is None else names.get(predicted, str(predicted))


def _order_classes(present: list[int], cells: Sequence[Cell], order: ClassOrder) -> list[int]:
    if order == "worst":
        right = {c["label"]: c["count"] for c in cells if c["label"] == c["predicted"]}
        totals = _totals(cells)
        return sorted(present, key=lambda label: right.get(label, 0) / totals[label] if totals.get(label) else 2.0)
    return _order_by_confusion(present, cells) if order == "together" and len(present) <= _MOST_TOGETHER else present


def _order_by_confusion(present: list[int], cells: Sequence[Cell]) -> list[int]:
    """Return the classes in an order in which those that are confused are neighbours: that of the Fiedler vector."""
    place = {label: n for n, label in enumerate(present)}
    weights = np.full((len(present), len(present)), 1e-6)
    for cell in cells:
        if cell["predicted"] is not None and cell["label"] != cell["predicted"]:
            x, y = place[cell["label"]], place[cell["predicted"]]
            weights[x, y] += cell["count"]
            weights[y, x] += cell["count"]
    np.fill_diagonal(weights, 0.0)
    laplacian = np.diag(weights.sum(1)) - weights
    vector = np.linalg.eigh(laplacian)[1][:, min(1, len(present) - 1)]
    return [present[n] for n in np.argsort(vector, kind="stable")]


def _totals(cells: Sequence[Cell]) -> dict[int, int]:
    totals: dict[int, int] = {}
    for cell in cells:
        totals[cell["label"]] = totals.get(cell["label"], 0) + cell["count"]
    return totals


def _heat(count: int, total: int) -> int:
    """Return one of ten steps of colour; a single mistake among thousands must still be visible."""
    return 0 if not count else max(1, min(10, math.ceil(10 * math.sqrt(count / total)))) if total else 1


def _table(
    cells: Sequence[Cell], present: list[int], columns: list[int | None], names: Mapping[int, str]
) -> JsonObject:
    counted = {(cell["label"], cell["predicted"]): cell["count"] for cell in cells}
    totals = _totals(cells)
    rows = []
    for label in present:
        total = totals.get(label, 0)
        row = [
            {
                "label": label,
                "predicted": predicted,
                "count": (count := counted.get((label, predicted), 0)),
                "share": count / total if total else 0.0,
                "heat": _heat(count, total),
                "right": label == predicted,
                "where": cell_condition(label, predicted),
            }
            for predicted in columns
        ]
        rows.append({"label": label, "name": names.get(label, str(label)), "cells": row, "total": total})
    return {"names": [predicted_name(column, names) for column in columns], "rows": rows}


def _grid(cells: Sequence[Cell], rows: list[int], columns: list[int | None], names: Mapping[int, str]) -> JsonObject:
    totals = _totals(cells)
    across = {column: n for n, column in enumerate(columns)}
    down = {label: n for n, label in enumerate(rows)}
    # The diagonal is always there; of the mistakes the most frequent.
    most = _MOST_OF_MANY if len(rows) > _MANY else _MOST_CELLS
    wrong = sorted((c for c in cells if c["label"] != c["predicted"]), key=lambda c: -c["count"])
    kept = [*(c for c in cells if c["label"] == c["predicted"]), *wrong[:most]]
    return {
        "classes": [{"label": label, "name": names.get(label, str(label)), "at": n} for n, label in enumerate(rows)],
        "columns": len(columns),
        "named": len(rows) <= _MOST_NAMED,
        "more": len(cells) - len(kept),
        "cells": [
            {
                "x": across[c["predicted"]],
                "y": down[c["label"]],
                "count": c["count"],
                "heat": _heat(c["count"], totals[c["label"]]),
                "right": c["label"] == c["predicted"],
                "label": c["label"],
                "predicted": c["predicted"],
                "title": f"{names.get(c['label'], c['label'])} predicted as {predicted_name(c['predicted'], names)}: {c['count']:,}",
            }
            for c in kept
        ],
    }
