"""`columns`: a column of a table is constant, or is the label."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.hashes import Array
from audit.checks.shared.significance import wilson
from audit.checks.shared.table_columns import NumberTable, read_table
from audit.texts import enumerate_some

#: So many samples at least; with fewer, chance could give all labels.
_FEWEST = 60
#: A value that so many numbers of the other columns have is the background of a sparse table, such as 0 of a flattened picture.
_BACKGROUND = 0.1
#: At most this many columns are named.
_MOST_NAMED = 5


class ColumnsCheck(Check):
    """Look at each number of samples that are rows of a table."""

    description = "No column of a table has one value in all samples, and none alone gives the label."
    question = "Is a column of a table the label, or constant?"
    statistic = (
        "how often the sample with the nearest value, of the other half, has the same label: Wilson's interval with "
        "three standard errors corrects 90 % of the errors of guessing; constant is counted, and a note where many "
        "other values are the same"
    )
    assumes = "rows of at most 1,000 numbers with a fraction"
    severity = "warning"
    options = settings(
        explained=Option(0.9, "Report a column that alone corrects at least this share of the errors of guessing."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        table = read_table(context)
        if len(table.values) < _FEWEST:
            raise Skip(f"the run has {len(table.values)} rows of numbers; at least {_FEWEST} are needed")
        query = f"SELECT index, label, split FROM {context.items} ORDER BY index"
        yield from _find_constant(table, query)
        yield from self._find_telling(context, table, query)

    def _find_telling(self, context: Context, table: NumberTable, query: str) -> Iterable[Finding]:
        known = np.array([label is not None for label in table.labels])
        labels = np.array([label for label in table.labels if label is not None])
        if len(labels) < _FEWEST or len(np.unique(labels)) < 2:
            return
        values = table.values[known]
        guessed = float(np.unique(labels, return_counts=True)[1].max() / len(labels))
        right = [count_right(values[:, n], labels) for n in range(values.shape[1])]
        low = np.array([wilson(count, len(labels), 3)[0] for count in right])
        found = np.flatnonzero((low - guessed) / (1 - guessed) >= context.options["explained"])
        if not len(found):
            return
        best = int(max(found, key=lambda n: right[n]))
        others = [int(n) for n in found if n != best]
        beneath = f" The same holds for {_name(others)}." if others else ""
        yield Finding(
            f"Column {best} alone gives the label of {right[best] / len(labels):.1%} of {len(labels):,} samples, where guessing gives "
            f"{guessed:.0%}: it may be the label itself, or known only after it.{beneath}",
            stage=0,
            value=right[best] / len(labels),
            threshold=guessed,
            sql=query,
        )


def _find_constant(table: NumberTable, query: str) -> Iterable[Finding]:
    first = table.values[0]
    constant = np.flatnonzero((table.values == first).all(axis=0))
    if not len(constant) or len(constant) == len(first):
        return
    others = np.delete(table.values, constant, axis=1)
    odd = [int(n) for n in constant if (others == first[n]).mean() < _BACKGROUND]
    for columns, severity in ((odd, None), ([int(n) for n in constant if n not in odd], "info")):
        if columns:
            said = "has the same value" if len(columns) == 1 else "have one value each"
            shown = f" ({first[columns[0]]:.4g})" if len(columns) == 1 else ""
            name = _name(columns)
            yield Finding(
                f"{name[0].upper()}{name[1:]} {said} in all {len(table.values):,} samples{shown}: a model learns nothing from that. "
                "Is it filled in?",
                stage=0,
                value=first[columns[0]],
                sql=query,
                severity="info" if severity else None,
            )


def _name(columns: list[int]) -> str:
    return f"column{'s' * (len(columns) > 1)} {enumerate_some(columns, _MOST_NAMED)}"


def count_right(values: Array, labels: Array) -> int:
    """Return how many samples have the label of that sample of the other half whose value is nearest."""
    half = np.random.default_rng(0).random(len(values)) < 0.5
    right = 0
    for learn in (half, ~half):
        if not learn.any() or learn.all():
            continue
        order = np.argsort(values[learn], kind="stable")
        known, answers = values[learn][order], labels[learn][order]
        place = np.searchsorted(known, values[~learn]).clip(1, len(known) - 1) if len(known) > 1 else np.zeros(1, int)
        before = np.maximum(place - 1, 0)
        nearer = np.abs(values[~learn] - known[before]) <= np.abs(values[~learn] - known[place])
        right += int((np.where(nearer, answers[before], answers[place]) == labels[~learn]).sum())
    return right
