"""Judge all predictions of a run, and those of each split: what is wrong in one split alone is hidden among the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from audit.checks.base import Finding, Skip
from audit.checks.context import Context
from audit.store.sql_literal import literal

#: Takes the check's context, predictions as SQL, and words that name their split, and returns findings.
Judge = Callable[[Context, str, str], Iterable[Finding]]


def judge_each_split(context: Context, judge: Judge) -> list[Finding]:
    """Return what is found among all predictions of the last epoch; if that is nothing, what is found in each split."""
    found = list(judge(context, context.predictions, ""))
    splits = [row["split"] for row in context.facts.epochs if row["split"] is not None]
    for split in splits if len(splits) > 1 and not found else ():
        keys = f"SELECT (epoch, index, visit) FROM samples WHERE run_id = {context.run_literal} AND split = {literal(split)}"
        predictions = f"(FROM {context.predictions} WHERE (epoch, index, visit) IN ({keys}))"
        with contextlib.suppress(Skip):
            found += judge(context, predictions, f" in {split}")
    return found
