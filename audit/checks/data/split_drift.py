"""`split_drift`: the pictures or labels of one split are distributed differently than those of another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared import distance
from audit.checks.shared.added_marks import find_mark
from audit.checks.shared.hashes import Array
from audit.checks.shared.pictures import Picture
from audit.checks.shared.signatures import exact_measures, signatures
from audit.checks.shared.statistics import holm

#: The quantiles that describe a distribution.
_QUANTILES = 101
#: A mark on many pictures of one split makes its pixels exceed their neighbours by so many standard deviations more than in others.
_MARKED = 0.3
#: Where previews are compressed, the noise of so many pictures is measured.
_FEW = 1_000


class SplitDrift(Check):
    """Compare each split with the largest one: labels by chi-square, loaded values by Kolmogorov–Smirnov."""

    description = "Labels, brightness, contrast, colour balance, detail, sharpness and noise are distributed in every split as in the largest one, and no split has a watermark of its own."
    severity = "warning"
    options = settings(
        ks=Option(0.2, "Report statistics whose Kolmogorov–Smirnov distance is at least this."),
        psi=Option(0.2, "Report labels whose population stability index is at least this."),
        significance=Option(0.001, "The probability of any false finding among all comparisons (Holm)."),
        samples=Option(50, "Compare only splits with at least this many samples."),
        pictures=Option(
            10_000, "Measure colour balance, detail, sharpness and noise of at most this many pictures, evenly chosen."
        ),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        least = context.options["samples"]
        counted = context.rows(
            f"SELECT split, count(*) AS samples FROM {context.items} WHERE split IS NOT NULL AND status = 'ok' "
            f"GROUP BY split HAVING count(*) >= {least} ORDER BY samples DESC, split"
        )
        splits = [row["split"] for row in counted]
        if len(splits) < 2:
            raise Skip(f"fewer than two splits have at least {least} samples")
        found = [*self._statistics(context, splits), *self._details(context, splits), *self._labels(context, splits)]
        sure = holm([chance for chance, _, _ in found], context.options["significance"])
        yield from self._marks(context, splits)
        yield from (finding for (_, large, finding), one in zip(found, sure, strict=True) if one and large)

    def _marks(self, context: Context, splits: Sequence[str]) -> Iterable[Finding]:
        """Report a watermark or logo on many pictures of one split."""
        if not any(row["stage"] == 0 and row["kind"] == "image" for row in context.profile):
            return
        try:
            given = signatures(context, context.options["pictures"])
        except Skip:
            return
        query = f"SELECT index, source, split FROM {context.items} WHERE split IS NOT NULL"
        split_of = {
            (row["index"], row["source"]): splits.index(row["split"])
            for row in context.cached(query)
            if row["split"] in splits
        }
        places = [n for n, one in enumerate(given.pictures) if (one.index, one.source) in split_of]
        codes = np.array([split_of[given.pictures[n].index, given.pictures[n].source] for n in places], np.int64)
        found = find_mark(given.thumbnails[places], codes, _MARKED) if places else None
        if found is not None:
            yield Finding(
                f"Many pictures of the split {splits[found.group]} have a mark that the others do not have: in a thumbnail of 32×32, in the rows "
                f"{found.rows[0]} to {found.rows[1]} and columns {found.columns[0]} to {found.columns[1]}, pixels exceed their neighbours by "
                f"{found.effect:.1f} standard deviations more.",
                stage=0,
                value=found.effect,
                threshold=_MARKED,
                sql=query,
            )

    def _statistics(self, context: Context, splits: Sequence[str]) -> Iterable[tuple[float, bool, Finding]]:
        points = "[" + ", ".join(f"{n / (_QUANTILES - 1):.2f}" for n in range(_QUANTILES)) + "]"
        for what in ("mean", "std"):
            query = (
                f"SELECT s.split, count(*) AS samples, quantile_cont(o.{what}, {points}) AS quantiles "
                f"FROM {context.items} s JOIN {context.load_outputs} o USING (epoch, index, visit) "
                f"WHERE s.split IS NOT NULL AND o.{what} IS NOT NULL AND isfinite(o.{what}) GROUP BY s.split"
            )
            rows = {row["split"]: row for row in context.rows(query)}
            for split in splits[1:]:
                if split not in rows or splits[0] not in rows:
                    continue
                here, there = rows[split], rows[splits[0]]
                ks = distance.kolmogorov_smirnov(there["quantiles"], here["quantiles"])
                chance = distance.kolmogorov_smirnov_chance(ks, there["samples"], here["samples"])
                middle = _QUANTILES // 2
                yield (
                    chance,
                    ks >= context.options["ks"],
                    Finding(
                        f"The {what} of loaded samples differs between the splits {splits[0]} and {split} "
                        f"(Kolmogorov–Smirnov {ks:.2f}): its median is {there['quantiles'][middle]:.4g} and "
                        f"{here['quantiles'][middle]:.4g}.",
                        stage=0,
                        value=ks,
                        threshold=context.options["ks"],
                        sql=f"SELECT split, samples, quantiles[51] AS median FROM ({query})",
                    ),
                )

    def _details(self, context: Context, splits: Sequence[str]) -> Iterable[tuple[float, bool, Finding]]:
        """Compare what only pixels show, such as another camera, or pictures that were made larger or compressed more."""
        if not any(row["stage"] == 0 and row["kind"] == "image" for row in context.profile):
            return
        query = f"SELECT index, source, split FROM {context.items} WHERE split IS NOT NULL"
        split_of = {(row["index"], row["source"]): row["split"] for row in context.cached(query)}
        points = np.linspace(0, 1, _QUANTILES)
        for called, given, values in _yield_measures(context):
            place = np.array([str(split_of.get((one.index, one.source))) for one in given])
            there = values[place == splits[0]]
            for split in splits[1:]:
                here = values[place == split]
                if min(len(here), len(there)) < context.options["samples"]:
                    continue
                ks = distance.kolmogorov_smirnov(
                    np.quantile(there, points).tolist(), np.quantile(here, points).tolist()
                )
                yield (
                    distance.kolmogorov_smirnov_chance(ks, len(there), len(here)),
                    ks >= context.options["ks"],
                    Finding(
                        f"{called[0].upper()}{called[1:]} of pictures differs between the splits {splits[0]} and {split} "
                        f"(Kolmogorov–Smirnov {ks:.2f}): they come from another camera, or were blurred, sharpened, resized or "
                        "compressed otherwise.",
                        stage=0,
                        value=ks,
                        threshold=context.options["ks"],
                        sql=query,
                    ),
                )

    def _labels(self, context: Context, splits: Sequence[str]) -> Iterable[tuple[float, bool, Finding]]:
        query = (
            f"SELECT split, label::VARCHAR AS label, count(*) AS samples FROM {context.items} "
            "WHERE split IS NOT NULL AND label IS NOT NULL GROUP BY ALL ORDER BY split, label"
        )
        rows: list[Any] = list(context.rows(query))
        counts = {
            split: {row["label"]: row["samples"] for row in group}
            for split, group in groupby(rows, key=lambda row: row["split"])
        }
        for split in splits[1:]:
            before, now = counts.get(splits[0]), counts.get(split)
            if not before or not now:
                continue
            psi = distance.population_stability(before, now)
            yield (
                distance.chi_square_chance(before, now),
                psi >= context.options["psi"],
                Finding(
                    f"The labels differ between the splits {splits[0]} and {split} (population stability {psi:.2f}).",
                    value=psi,
                    threshold=context.options["psi"],
                    sql=query,
                ),
            )


def _yield_measures(context: Context) -> Iterable[tuple[str, list[Picture], Array]]:
    """Yield what is compared of the pixels, in words; the pictures; and one number of each."""
    most = context.options["pictures"]
    try:
        given = signatures(context, most)
        exact = exact_measures(context, _FEW, most)
    except Skip as skipped:
        context.note(f"the pixels were not compared: {skipped}")
        return
    for called, values in given.details.items():
        yield called, given.pictures, values
    # How much red and blue exceed green: a white balance is a temperature (red against blue) and a tint.
    red, blue = given.looks[:, 0], given.looks[:, 1]
    for called, values in (("the colour temperature", red - blue), ("the tint", red + blue)):
        if values.any():
            yield called, given.pictures, values
    noise = np.array([one.noise for one in exact])
    if noise.any():
        yield "the noise", [one.picture for one in exact], noise
