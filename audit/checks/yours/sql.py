"""`sql`: your own query, which must return no rows, or a value within bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.store.read.rows import QueryRow


class Sql(Check):
    """Use the columns index, source, stage, value and message for the finding; show the others as text."""

    description = "Your own query, which must return no rows, or one value between min and max. It sees only this run."
    question = "Does your own rule hold?"
    rule = "your query"
    default = False
    options = settings(
        query=Option("", "The query; it is read-only."),
        message=Option("", "What a row means; without it the row itself is shown."),
        min=Option(None, "The query's one value must not be below this.", kind=float),
        max=Option(None, "The query's one value must not be above this.", kind=float),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        query = str(context.options["query"]).strip().rstrip(";")
        low, high = context.options["min"], context.options["max"]
        if low is not None or high is not None:
            yield from self._check_bounds(context, query, low, high)
            return
        for row in context.offenders(query, order="ALL"):
            row.pop("total_", None)
            yield Finding(
                str(row.get("message") or context.options["message"] or _row_text(row)),
                index=_whole_number(row.get("index")),
                source=str(row["source"]) if row.get("source") is not None else None,
                stage=_whole_number(row.get("stage")),
                value=_number(row.get("value")),
                sql=query,
            )

    def _check_bounds(self, context: Context, query: str, low: float | None, high: float | None) -> Iterable[Finding]:
        rows = context.rows(query)
        if len(rows) != 1 or len(rows[0]) != 1:
            raise ValueError(f"with min or max the query must give one value, not {len(rows)} rows")
        value = _number(next(iter(rows[0].values())))
        said = context.options["message"] or "The query's value"
        if value is None or math.isnan(value):
            yield Finding(f"{said} is not a number.", sql=query)
        elif low is not None and value < low:
            yield Finding(f"{said} is {value:.6g}, below {low:.6g}.", value=value, threshold=low, sql=query)
        elif high is not None and value > high:
            yield Finding(f"{said} is {value:.6g}, above {high:.6g}.", value=value, threshold=high, sql=query)


def _row_text(row: QueryRow) -> str:
    return ", ".join(f"{key} = {value}" for key, value in row.items())[:300]


def _whole_number(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
