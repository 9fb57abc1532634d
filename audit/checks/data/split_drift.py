"""`split_drift`: the pictures or labels of one split are distributed differently than those of another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared import distance
from audit.checks.shared.hashes import Array
from audit.checks.shared.picture_signatures import SATURATION, exact_measures, signatures
from audit.checks.shared.pictures import Picture
from audit.checks.shared.significance import holm
from audit.checks.shared.split_columns import QUANTILES, Difference, compare_columns
from audit.checks.shared.split_pictures import find_marked_split, find_turned_splits, select_splits
from audit.checks.shared.split_texts import compare_texts

#: How long a text, a sound or another row of values is; pictures have a width and a height.
_LENGTH = "CASE WHEN o.kind IN ('text', 'tokens') OR len(o.shape) = 1 THEN o.shape[1] WHEN o.kind <> 'image' AND len(o.shape) = 2 THEN o.shape[2] END::DOUBLE"
#: What is compared of loaded samples.
_LOAD_COLUMNS = {"mean": "o.mean", "std": "o.std", "length": _LENGTH}
#: Where previews are compressed, the noise of so many pictures is measured.
_FEW = 1_000


class SplitDrift(Check):
    """Compare each split with the largest one: labels by chi-square, loaded values by Kolmogorov–Smirnov."""

    description = (
        "Labels, measured targets, pixels, lengths, letters of texts and columns of tables are distributed in every split as in the largest one, and no split has "
        "its own watermark or turned pictures."
    )
    question = "Do the splits of one run differ?"
    statistic = (
        "as in `drift`, Holm over all comparisons; of texts, also the shares of capital letters, digits, other signs "
        "and other alphabets. Columns of a table: with Bonferroni's correction. Marks: as in `shortcuts`. Turned "
        "pictures: Fisher's discriminant between the mean of the largest split and the same mean turned, with four "
        "standard errors on both sides"
    )
    assumes = "independent samples; pictures have a top and a bottom"
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
        columns = list(compare_columns(context, splits))
        found = [
            *columns,
            # A column that differs changes the mean of the rows: one cause is one finding.
            *(one for one in self._statistics(context, splits) if not any(column.is_large for column in columns)),
            *self._details(context, splits),
            # Shares of signs follow from the length of the texts, so they come after it.
            *compare_texts(context, splits),
            *self._labels(context, splits),
        ]
        sure = holm([one.chance for one in found], context.options["significance"])
        yield from find_marked_split(context, splits)
        yield from find_turned_splits(context, splits)
        yield from _merge_causes([one for one, is_sure in zip(found, sure, strict=True) if is_sure and one.is_large])

    def _statistics(self, context: Context, splits: Sequence[str]) -> Iterable[Difference]:
        points = "[" + ", ".join(f"{n / (QUANTILES - 1):.2f}" for n in range(QUANTILES)) + "]"
        measured = f"(FROM graded_predictions WHERE run_id = {context.run_literal} AND target IS NOT NULL)"
        loaded = [(what, value, context.load_outputs) for what, value in _LOAD_COLUMNS.items()]
        for what, value, rows_of in [*loaded, ("target", "o.target[1]", measured)]:
            query = (
                f"SELECT s.split, count(*) AS samples, quantile_cont({value}, {points}) AS quantiles "
                f"FROM {context.items} s JOIN {rows_of} o USING (epoch, index, visit) "
                f"WHERE s.split IS NOT NULL AND {value} IS NOT NULL AND isfinite({value}) GROUP BY s.split"
            )
            rows = {row["split"]: row for row in context.rows(query)}
            for split in splits[1:]:
                if split not in rows or splits[0] not in rows:
                    continue
                here, there = rows[split], rows[splits[0]]
                ks = distance.kolmogorov_smirnov(there["quantiles"], here["quantiles"])
                chance = distance.kolmogorov_smirnov_chance(ks, there["samples"], here["samples"])
                middle = QUANTILES // 2
                is_target = what == "target"
                yield Difference(
                    chance,
                    ks >= context.options["ks"],
                    Finding(
                        f"The {what} of {'' if is_target else 'loaded '}samples differs between the splits {splits[0]} and {split} "
                        f"(Kolmogorov–Smirnov {ks:.2f}): its median is {there['quantiles'][middle]:.4g} and "
                        f"{here['quantiles'][middle]:.4g}.{' Was it scaled in one of them alone?' if is_target else ''}",
                        stage=None if is_target else 0,
                        value=ks,
                        threshold=context.options["ks"],
                        sql=f"SELECT split, samples, quantiles[51] AS median FROM ({query})",
                    ),
                    split,
                    None if is_target else f"the {what}",
                )

    def _details(self, context: Context, splits: Sequence[str]) -> Iterable[Difference]:
        """Compare what only pixels show, such as another camera, or pictures that were made larger or compressed more."""
        if not any(row["stage"] == 0 and row["kind"] == "image" for row in context.profile):
            return
        query = select_splits(context)
        points = np.linspace(0, 1, QUANTILES)
        for called, given, values in _yield_measures(context):
            place = np.array([str(one.split) for one in given])
            there = values[place == splits[0]]
            for split in splits[1:]:
                here = values[place == split]
                if min(len(here), len(there)) < context.options["samples"]:
                    continue
                ks = distance.kolmogorov_smirnov(
                    np.quantile(there, points).tolist(), np.quantile(here, points).tolist()
                )
                yield Difference(
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
                    split,
                    called,
                )

    def _labels(self, context: Context, splits: Sequence[str]) -> Iterable[Difference]:
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
            yield Difference(
                distance.chi_square_chance(before, now),
                psi >= context.options["psi"],
                Finding(
                    f"The labels differ between the splits {splits[0]} and {split} (population stability {psi:.2f}).",
                    value=psi,
                    threshold=context.options["psi"],
                    sql=query,
                ),
                split,
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
    shown = (
        ("the colour temperature", red - blue),
        ("the tint", red + blue),
        ("the saturation", given.looks[:, SATURATION]),
    )
    for called, values in shown:
        if values.any():
            yield called, given.pictures, values
    noise = np.array([one.noise for one in exact])
    if noise.any():
        yield "the noise", [one.picture for one in exact], noise


def _merge_causes(found: list[Difference]) -> Iterable[Finding]:
    """Yield the findings; what differs in the samples of one split has one cause: the largest difference, which names the others."""
    merged: dict[str, list[Difference]] = {}
    for one in found:
        if one.called is None:
            yield one.finding
        else:
            merged.setdefault(one.split, []).append(one)
    for group in merged.values():
        best, *others = sorted(group, key=lambda one: -round(one.finding.value or 0, 2))
        names = ", ".join(f"{one.called} ({one.finding.value:.2f})" for one in others)
        further = f" The same holds for {names}." if others else ""
        yield replace(best.finding, message=best.finding.message + further)
