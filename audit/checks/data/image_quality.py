"""`image_quality`: dark, bright, blurry, oddly sized, empty, or grey pictures among coloured ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypedDict

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.hashes import Array
from audit.checks.shared.picture_measures import Measures
from audit.checks.shared.picture_signatures import exact_measures

_COLOUR = "('RGB', 'RGBA', 'RGBX', 'CMYK', 'YCbCr', 'HSV', 'LAB', 'RGBa')"
_GREY = "('L', 'LA', 'La', '1', 'I;16', 'I', 'F')"
#: Modes whose statistics are brightness levels; the numbers of a palette are not.
_LEVELS = "('L', 'RGB')"


#: Of fewer pictures no size is usual.
_FEWEST = 10
#: Drawings lie on a black or a white ground: the median level at the border. So many have one, and so many at most the other.
_BLACK, _WHITE = 24, 231
_USUAL, _ODD = 0.8, 0.2
#: So many pictures at least, and so many odd ones.
_FEWEST_DRAWN, _FEWEST_ODD = 100, 3


class _SizeCount(TypedDict):
    """The pictures of one size and mode, and how many of them are dark, bright or nearly empty."""

    width: int
    height: int
    mode: str | None
    pictures: int
    unusual: int


class _UnusualPicture(TypedDict):
    """A picture that is unusual by its recorded statistics, in what, and what is usual."""

    epoch: int
    index: int
    visit: int
    source: str | None
    width: int
    height: int
    mode: str | None
    mean: float
    std: float
    unusual_levels: bool
    unusual_size: bool
    unusual_mode: bool
    usual_side: float
    aspect_limit: float


class ImageQuality(Check):
    """Check sizes, brightness and modes from recorded statistics, and sharpness from the pictures."""

    description = "Pictures that are dark, bright, blurry, of odd size or aspect, nearly empty, grey among coloured, or inverted among drawings."
    question = "Is a picture dark, bright, blank, blurry, of an odd size, inverted?"
    rule = (
        "recorded mean and deviation, a white border where 80 % of the pictures have a black one, or the reverse, "
        "sides against the median, the variance of the Laplacian below 12 and a tenth of the median"
    )
    assumes = "photographs; 32 pixels for sharpness"
    severity = "warning"
    needs = ("pictures",)
    options = settings(
        dark=Option(40.0, "A picture whose mean plus three standard deviations stays below this is dark."),
        bright=Option(215.0, "A picture whose mean less three standard deviations stays above this is bright."),
        low_information=Option(4.0, "A picture whose levels have a standard deviation below this has low information."),
        size_ratio=Option(10.0, "A picture this many times larger or smaller than the median size is odd."),
        aspect_ratio=Option(3.0, "An aspect ratio above this, and above twice the median, is odd."),
        blur=Option(
            12.0, "Sharpness (variance of the Laplacian) below this, and below a tenth of the median, is blurry."
        ),
        grey_share=Option(0.1, "Report grey pictures only if at most this share of all pictures is grey."),
        pictures=Option(
            1_000, "Where previews are compressed, measure the sharpness of at most this many pictures; 0 measures all."
        ),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        rows = self._find_unusual(context)
        yield from self._brightness(context, [row for row in rows if row["unusual_levels"]])
        yield from self._sizes(context, [row for row in rows if row["unusual_size"]])
        for row in rows:
            if row["unusual_mode"]:
                place = (row["index"], row["source"])
                yield _finding(context, place, "is grey among coloured pictures", f"mode {row['mode']}", None, None)
        yield from self._find_by_looking(context)
        yield from self._find_inverted(context)

    def _find_inverted(self, context: Context) -> Iterable[Finding]:
        """Report pictures on a white ground where nearly all others are on a black one, or the reverse: some were inverted."""
        try:
            seen = exact_measures(context, context.options["pictures"])
        except Skip:
            return
        if len(seen) < _FEWEST_DRAWN:
            return
        rims = _border_levels(np.stack([one.thumbnail for one in seen]))
        for usual, odd, words in (
            (rims <= _BLACK, rims >= _WHITE, ("white", "black")),
            (rims >= _WHITE, rims <= _BLACK, ("black", "white")),
        ):
            if usual.mean() < _USUAL or not _FEWEST_ODD <= odd.sum() <= _ODD * len(seen):
                continue
            one = seen[int(np.flatnonzero(odd)[0])].picture
            yield Finding(
                f"{odd.sum():,} of {len(seen):,} pictures have a {words[0]} border, where {usual.mean():.0%} have a {words[1]} one, such as "
                f"{one.source} (index {one.index}): were they inverted?",
                index=one.index,
                source=one.source,
                stage=0,
                value=float(odd.mean()),
                threshold=_ODD,
                sql=context.evidence("stage_outputs", one.index, "stage = 0"),
            )

    def _find_unusual(self, context: Context) -> list[_UnusualPicture]:
        """Return the pictures that are unusual by their statistics: one pass counts them, another fetches them if there are any."""
        options = context.options
        levels = (
            f"coalesce(mode IN {_LEVELS} AND min < max AND (mean + 3 * std < {options['dark']} "
            f"OR mean - 3 * std > {options['bright']} OR std < {options['low_information']}), false)"
        )
        stage = (
            "SELECT epoch, index, visit, shape[2] AS width, shape[1] AS height, mode, mean, std, "
            f"{levels} AS unusual_levels FROM {context.load_outputs} WHERE kind = 'image'"
        )
        counted = context.facts.typed_rows(
            _SizeCount,
            f"SELECT width, height, mode, count(*) AS pictures, count(*) FILTER (unusual_levels) AS unusual FROM ({stage}) "
            "GROUP BY width, height, mode",
        )
        grey = sum(row["pictures"] for row in counted if f"'{row['mode']}'" in _GREY)
        colour = sum(row["pictures"] for row in counted if f"'{row['mode']}'" in _COLOUR)
        few_grey = 0 < grey <= options["grey_share"] * (grey + colour)
        sized = [row for row in counted if row["width"] and row["height"]]
        side = _median([(_side(row), row["pictures"]) for row in sized])
        limit = max(options["aspect_ratio"], 2 * _median([(_aspect(row), row["pictures"]) for row in sized]))
        factor = options["size_ratio"]
        odd = {
            (row["width"], row["height"])
            for row in sized
            if not side / factor <= _side(row) <= side * factor or _aspect(row) > limit
        }
        if sum(row["pictures"] for row in sized) < _FEWEST:
            odd = set()
        if not odd and not few_grey and not any(row["unusual"] for row in counted):
            return []
        listed = ", ".join(f"({width}, {height})" for width, height in sorted(odd)) or "(NULL, NULL)"
        query = (
            f"SELECT *, coalesce((width, height) IN ({listed}), false) AS unusual_size, "
            f"coalesce(mode IN {_GREY if few_grey else '(NULL)'}, false) AS unusual_mode, {side}::DOUBLE AS usual_side, "
            f"{limit}::DOUBLE AS aspect_limit FROM ({stage})"
        )
        return context.typed_offenders(
            _UnusualPicture, f"FROM ({query}) WHERE unusual_levels OR unusual_size OR unusual_mode"
        )

    def _brightness(self, context: Context, rows: Sequence[_UnusualPicture]) -> Iterable[Finding]:
        options = context.options
        for row in rows:
            mean, std = row["mean"], row["std"]
            if mean + 3 * std < options["dark"]:
                said, value, limit = "is dark", mean, options["dark"]
            elif mean - 3 * std > options["bright"]:
                said, value, limit = "is bright", mean, options["bright"]
            else:
                said, value, limit = "has low information", std, options["low_information"]
            why = f"mean {mean:.4g}, standard deviation {std:.3g}"
            yield _finding(context, (row["index"], row["source"]), said, why, value, limit)

    def _sizes(self, context: Context, rows: Sequence[_UnusualPicture]) -> Iterable[Finding]:
        for row in rows:
            place, shown = (row["index"], row["source"]), f"{row['width']}×{row['height']}"
            aspect = max(row["width"] / row["height"], row["height"] / row["width"])
            if aspect > row["aspect_limit"]:
                yield _finding(context, place, "has an odd aspect", shown, aspect, row["aspect_limit"])
            else:
                why = f"{shown}, usual is a side of {row['usual_side']:.0f}"
                size = math.sqrt(row["width"] * row["height"]) / row["usual_side"]
                limit = context.options["size_ratio"]
                yield _finding(context, place, "has an odd size", why, size, limit)

    def _find_by_looking(self, context: Context) -> Iterable[Finding]:
        seen: list[Measures] = []
        try:
            seen = [one for one in exact_measures(context, context.options["pictures"]) if one.side >= 32]
        except Skip as skipped:
            # The checks on recorded statistics have already reported these.
            context.note(f"sharpness was not measured: {skipped}")
        sharp = [one.sharpness for one in seen if one.sharpness > 0]
        usual = statistics.median(sharp) if len(sharp) >= 10 else 0.0
        coloured = [one.grey for one in seen if one.colour]
        odd_grey = 0 < sum(coloured) <= context.options["grey_share"] * len(coloured)
        least = min(context.options["blur"], 0.1 * usual)
        for one in seen:
            place, score = (one.picture.index, one.picture.source), one.sharpness
            if 0 < score < least:
                yield _finding(
                    context, place, "is blurry", f"sharpness {score:.3g}, usual is {usual:.3g}", score, least
                )
            if odd_grey and one.grey:
                # Among photographs a few grey ones are usual, and they are stored as coloured ones.
                found = _finding(
                    context, place, "is grey among coloured pictures", "its channels are equal", None, None
                )
                yield replace(found, severity="info")


def _border_levels(thumbnails: Array) -> Array:
    """Return the median level of the pixels at the border of each picture."""
    sides = [thumbnails[:, 0], thumbnails[:, -1], thumbnails[:, 1:-1, 0], thumbnails[:, 1:-1, -1]]
    levels: Array = np.median(np.concatenate(sides, axis=1), axis=1)
    return levels


def _side(row: _SizeCount) -> float:
    return math.sqrt(row["width"] * row["height"])


def _aspect(row: _SizeCount) -> float:
    return max(row["width"] / row["height"], row["height"] / row["width"])


def _median(counted: list[tuple[float, int]]) -> float:
    """Return the median of values that occur so many times each; 1 if there are none."""
    half = sum(count for _, count in counted) / 2
    for value, count in sorted(counted):
        half -= count
        if half <= 0:
            return value
    return 1.0


def _finding(
    context: Context, place: tuple[int, str | None], said: str, why: str, value: float | None, threshold: float | None
) -> Finding:
    index, source = place
    return Finding(
        f"{source} (index {index}) {said}: {why}.",
        index=index,
        source=source,
        stage=0,
        value=value,
        threshold=threshold,
        sql=context.evidence("stage_outputs", index, "stage = 0"),
    )
