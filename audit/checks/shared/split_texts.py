"""Compare how texts are written between splits: capital letters, digits, other signs and other alphabets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from audit.checks.base import Finding
from audit.checks.context import Context
from audit.checks.shared import distance
from audit.checks.shared.files import spread_evenly
from audit.checks.shared.split_columns import QUANTILES, Difference
from audit.checks.shared.split_pictures import select_splits

#: At most about this many texts are read.
_TEXTS = 5_000
_MEASURES = ("capital letters", "digits", "signs that are neither letters nor digits", "letters of other alphabets")


def compare_texts(context: Context, splits: Sequence[str]) -> Iterable[Difference]:
    """Compare the share of each kind of signs, by the stored excerpts of the texts."""
    if not any(row["stage"] == 0 and row["kind"] == "text" for row in context.profile):
        return
    rows = context.rows(
        f"SELECT split, data FROM {context.items} JOIN payloads USING (run_id, epoch, index, visit) WHERE stage = 0 "
        f"AND payloads.kind = 'text' AND form = 'preview' AND split IS NOT NULL AND {spread_evenly(_TEXTS, max(_TEXTS, context.run.samples))}"
    )
    if not rows:
        return
    measured = np.array([measure_text(row["data"].decode("utf-8", "replace")) for row in rows])
    place = np.array([str(row["split"]) for row in rows])
    points = np.linspace(0, 1, QUANTILES)
    for split in splits[1:]:
        there, here = measured[place == splits[0]], measured[place == split]
        if min(len(there), len(here)) < context.options["samples"]:
            continue
        for number, called in enumerate(_MEASURES):
            sides = there[:, number], here[:, number]
            ks = distance.kolmogorov_smirnov(*(np.quantile(side, points).tolist() for side in sides))
            yield Difference(
                distance.kolmogorov_smirnov_chance(ks, len(there), len(here)),
                ks >= context.options["ks"],
                Finding(
                    f"The share of {called} in the texts differs between the splits {splits[0]} and {split} (Kolmogorov–Smirnov {ks:.2f}): "
                    f"the means are {sides[0].mean():.1%} and {sides[1].mean():.1%}. Were they written or prepared in another way?",
                    stage=0,
                    value=ks,
                    threshold=context.options["ks"],
                    sql=select_splits(context),
                ),
                split,
                f"the share of {called}",
            )


def measure_text(text: str) -> tuple[float, float, float, float]:
    """Return the share of capital letters and of letters beyond ASCII among letters, and of digits and other signs among all but spaces."""
    signs = "".join(text.split())
    letters = [sign for sign in signs if sign.isalpha()]
    digits = sum(sign.isdigit() for sign in signs)
    capitals, others = sum(sign.isupper() for sign in letters), sum(not sign.isascii() for sign in letters)
    whole = max(1, len(signs))
    return (
        capitals / max(1, len(letters)),
        digits / whole,
        (len(signs) - digits - len(letters)) / whole,
        others / max(1, len(letters)),
    )
