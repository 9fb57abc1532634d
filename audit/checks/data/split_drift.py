"""`split_drift`: the pictures or labels of one split are distributed differently than those of another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from audit.checks.shared.table_columns import read_table
from audit.checks.shared.turned_groups import TurnedGroup, find_turn
from audit.class_names import show_class

#: The quantiles that describe a distribution.
_QUANTILES = 101
#: A mark on many pictures of one split makes its pixels exceed their neighbours by so many standard deviations more than in others.
_MARKED = 0.3
#: How long a text, a sound or another row of values is; pictures have a width and a height.
_LENGTH = "CASE WHEN o.kind IN ('text', 'tokens') OR len(o.shape) = 1 THEN o.shape[1] WHEN o.kind <> 'image' AND len(o.shape) = 2 THEN o.shape[2] END::DOUBLE"
#: Where previews are compressed, the noise of so many pictures is measured.
_FEW = 1_000


class SplitDrift(Check):
    """Compare each split with the largest one: labels by chi-square, loaded values by Kolmogorov–Smirnov."""

    description = (
        "Labels, pixels, lengths and columns of tables are distributed in every split as in the largest one, and no split has "
        "a watermark of its own or pictures that are turned."
    )
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
        columns = list(self._columns(context, splits))
        found = [
            *columns,
            # A column that differs changes the mean of the rows: one cause is one finding.
            *(one for one in self._statistics(context, splits) if not any(large for _, large, _ in columns)),
            *self._details(context, splits),
            *self._labels(context, splits),
        ]
        sure = holm([chance for chance, _, _ in found], context.options["significance"])
        yield from self._marks(context, splits)
        yield from self._turned(context, splits)
        yield from (finding for (_, large, finding), one in zip(found, sure, strict=True) if one and large)

    def _marks(self, context: Context, splits: Sequence[str]) -> Iterable[Finding]:
        """Report a watermark or logo on many pictures of one split."""
        given = _Thumbnails.of(context, splits)
        found = find_mark(given.pixels, given.splits, _MARKED) if len(given.pixels) else None
        if found is not None:
            yield Finding(
                f"Many pictures of the split {splits[found.group]} have a mark that the others do not have: in a thumbnail of 32×32, in the rows "
                f"{found.rows[0]} to {found.rows[1]} and columns {found.columns[0]} to {found.columns[1]}, pixels exceed their neighbours by "
                f"{found.effect:.1f} standard deviations more.",
                stage=0,
                value=found.effect,
                threshold=_MARKED,
                sql=_select_splits(context),
            )

    def _turned(self, context: Context, splits: Sequence[str]) -> Iterable[Finding]:
        """Report pictures of a split, or of one class in a split, that are turned or mirrored against the largest split."""
        given = _Thumbnails.of(context, splits)
        for number, split in enumerate(splits[1:], 1):
            here, there = given.splits == number, given.splits == 0
            turns: list[tuple[int | None, TurnedGroup | None]] = [
                (None, find_turn(given.pixels[there], given.pixels[here]))
            ]
            if turns[0][1] is None:
                turns = [
                    (label, find_turn(given.pixels[there & same], given.pixels[here & same]))
                    for label in sorted({int(label) for label in given.labels[here] if label is not None})
                    if (same := given.labels == label).any()
                ]
            for label, turn in turns:
                if turn is not None:
                    which = "" if label is None else f" of the class {show_class(context.run.classes, label)}"
                    yield Finding(
                        f"The pictures{which} in the split {split} are {turn.said} against those in {splits[0]}.",
                        stage=0,
                        value=turn.place,
                        threshold=0.0,
                        sql=_select_splits(context),
                    )

    def _columns(self, context: Context, splits: Sequence[str]) -> Iterable[tuple[float, bool, Finding]]:
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
            found = sorted(_compare_columns(there, here))
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
            others = f" So do {len(odd) - 1} other columns." if len(odd) > 1 else ""
            yield (
                min(1.0, chance * len(found)),
                bool(odd),
                Finding(
                    f"Column {column} of the table differs between the splits {splits[0]} and {split} (Kolmogorov–Smirnov {ks:.2f}): its median is "
                    f"{' and '.join(f'{median:.4g}' for median in medians)}. Another unit, or another order of the columns?{others}",
                    stage=0,
                    value=ks,
                    threshold=context.options["ks"],
                    sql=_select_splits(context),
                ),
            )

    def _statistics(self, context: Context, splits: Sequence[str]) -> Iterable[tuple[float, bool, Finding]]:
        points = "[" + ", ".join(f"{n / (_QUANTILES - 1):.2f}" for n in range(_QUANTILES)) + "]"
        for what, value in (("mean", "o.mean"), ("std", "o.std"), ("length", _LENGTH)):
            query = (
                f"SELECT s.split, count(*) AS samples, quantile_cont({value}, {points}) AS quantiles "
                f"FROM {context.items} s JOIN {context.load_outputs} o USING (epoch, index, visit) "
                f"WHERE s.split IS NOT NULL AND {value} IS NOT NULL AND isfinite({value}) GROUP BY s.split"
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
        query = _select_splits(context)
        points = np.linspace(0, 1, _QUANTILES)
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


@dataclass(frozen=True)
class _Thumbnails:
    """Thumbnails of the pictures of some splits, with the number of the split and the label of each."""

    pixels: Array
    splits: Array
    labels: Array

    @classmethod
    def of(cls, context: Context, splits: Sequence[str]) -> _Thumbnails:
        """Return those of all pictures with enough detail; none if the samples are not pictures, or cannot be read."""
        try:
            is_picture = any(row["stage"] == 0 and row["kind"] == "image" for row in context.profile)
            given = signatures(context, context.options["pictures"]) if is_picture else None
        except Skip:
            given = None
        if given is None:
            return cls(np.empty((0, 32, 32), np.uint8), np.empty(0, np.int64), np.empty(0, object))
        known = {
            (row["split"], row["index"]): (splits.index(row["split"]), row["label"])
            for row in context.cached(_select_splits(context))
            if row["split"] in splits
        }
        places = [n for n, one in enumerate(given.pictures) if one.sample in known]
        pairs = [known[given.pictures[n].sample] for n in places]
        labels = np.empty(len(pairs), object)
        labels[:] = [label for _, label in pairs]
        return cls(given.thumbnails[places], np.array([split for split, _ in pairs], np.int64), labels)


def _select_splits(context: Context) -> str:
    return f"SELECT index, source, split, label FROM {context.items} WHERE split IS NOT NULL"


def _compare_columns(there: Array, here: Array) -> Iterable[tuple[float, float, int]]:
    """Yield for each column that varies the chance of its distance, the distance, and its number."""
    points = np.linspace(0, 1, _QUANTILES)
    for column in range(there.shape[1]):
        sides = [side[np.isfinite(side[:, column]), column] for side in (there, here)]
        if min(map(len, sides)) > 1 and np.ptp(np.concatenate(sides)) > 0:
            ks = distance.kolmogorov_smirnov(*(np.quantile(side, points).tolist() for side in sides))
            yield distance.kolmogorov_smirnov_chance(ks, len(sides[0]), len(sides[1])), ks, column


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
