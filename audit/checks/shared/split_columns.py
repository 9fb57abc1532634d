"""Compare the columns of a table between splits, and distributions by their quantiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from audit.checks.base import Finding, Skip
from audit.checks.context import Context
from audit.checks.shared import distance
from audit.checks.shared.hashes import Array
from audit.checks.shared.split_pictures import select_splits
from audit.checks.shared.table_columns import read_table

#: The quantiles that describe a distribution.
QUANTILES = 101


class Difference(NamedTuple):
    """The probability of a difference by chance, whether it is large enough to matter, and what to report then.

    `called` is what differs, if other differences of the same split may have the same cause: they are reported beneath it.
    """

    chance: float
    is_large: bool
    finding: Finding
    split: str
    called: str | None = None


def compare_columns(context: Context, splits: Sequence[str]) -> Iterable[Difference]:
    """Compare the columns of a table one by one; all that differ are one finding."""
    try:
        table = read_table(context)
    except Skip:
        return
    place = np.array([str(split) for split in table.splits])
    for split in splits[1:]:
        there, here = table.values[place == splits[0]], table.values[place == split]
        if min(len(there), len(here)) < context.options["samples"]:
            continue
        found = sorted(_yield_distances(there, here))
        chances = [chance * len(found) for chance, _, _ in found]
        odd = [
            n
            for n, (_, ks, _) in enumerate(found)
            if ks >= context.options["ks"] and chances[n] <= context.options["significance"]
        ]
        if not found:
            continue
        chance, ks, column = found[odd[0] if odd else 0]
        medians = (float(np.nanmedian(side[:, column])) for side in (there, here))
        others = f" {len(odd) - 1} other columns differ too." if len(odd) > 1 else ""
        yield Difference(
            min(1.0, chance * len(found)),
            bool(odd),
            Finding(
                f"Column {column} of the table differs between the splits {splits[0]} and {split} (Kolmogorov–Smirnov {ks:.2f}): its median is "
                f"{' and '.join(f'{median:.4g}' for median in medians)}. Another unit, or another order of the columns?{others}",
                stage=0,
                value=ks,
                threshold=context.options["ks"],
                sql=select_splits(context),
            ),
            split,
        )


def _yield_distances(there: Array, here: Array) -> Iterable[tuple[float, float, int]]:
    """Yield for each column that varies the chance of its distance, the distance, and its number."""
    points = np.linspace(0, 1, QUANTILES)
    for column in range(there.shape[1]):
        sides = [side[np.isfinite(side[:, column]), column] for side in (there, here)]
        if min(map(len, sides)) > 1 and np.ptp(np.concatenate(sides)) > 0:
            ks = distance.kolmogorov_smirnov(*(np.quantile(side, points).tolist() for side in sides))
            yield distance.kolmogorov_smirnov_chance(ks, len(sides[0]), len(sides[1])), ks, column
