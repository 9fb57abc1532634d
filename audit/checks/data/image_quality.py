"""`image_quality`: dark, bright, blurry, oddly sized, empty, or grey pictures among coloured ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.pictures import SIDE, pictures

_COLOUR = "('RGB', 'RGBA', 'RGBX', 'CMYK', 'YCbCr', 'HSV', 'LAB', 'RGBa')"
_GREY = "('L', 'LA', 'La', '1', 'I;16', 'I', 'F')"
#: A picture whose levels vary less than this has no edges, so sharpness is not measured.
_FAINT = 10.0
#: Modes whose statistics are brightness levels; the numbers of a palette are not.
_LEVELS = "('L', 'RGB')"


class ImageQuality(Check):
    """Check sizes, brightness and modes from recorded statistics, and sharpness from the pictures."""

    description = "Pictures that are dark, bright, blurry, of odd size or aspect, nearly empty, or grey among coloured."
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
        pictures=Option(1_000, "Measure the sharpness of at most this many pictures; 0 measures all."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        stage = (
            "SELECT epoch, index, visit, shape[2] AS width, shape[1] AS height, mode, mean, std, min, max "
            f"FROM {context.sources_decoded} WHERE kind = 'image'"
        )
        yield from self._brightness(context, stage)
        yield from self._sizes(context, stage)
        yield from self._grey(context, stage)
        yield from self._looked_at(context)

    def _brightness(self, context: Context, stage: str) -> Iterable[Finding]:
        options = context.options
        query = (
            f"SELECT *, CASE WHEN mean + 3 * std < {options['dark']} THEN 'dark' "
            f"WHEN mean - 3 * std > {options['bright']} THEN 'bright' ELSE 'low information' END AS problem FROM ({stage}) "
            f"WHERE mode IN {_LEVELS} AND min < max AND (mean + 3 * std < {options['dark']} "
            f"OR mean - 3 * std > {options['bright']} OR std < {options['low_information']})"
        )
        for row in context.offenders(query):
            key = str(row["problem"]).replace(" ", "_")
            value = row["std"] if key == "low_information" else row["mean"]
            said = f"{'has' if key == 'low_information' else 'is'} {row['problem']}"
            why = f"mean {row['mean']:.4g}, standard deviation {row['std']:.3g}"
            yield _finding(context, (row["index"], row["source"]), said, why, value, options[key])

    def _sizes(self, context: Context, stage: str) -> Iterable[Finding]:
        factor, aspect = context.options["size_ratio"], context.options["aspect_ratio"]
        usual = context.rows(
            "SELECT approx_quantile(sqrt(width * height), 0.5) AS side, "
            "approx_quantile(greatest(width / height, height / width), 0.5) AS aspect, "
            f"count(*) AS pictures FROM ({stage}) WHERE width > 0 AND height > 0"
        )[0]
        if usual["pictures"] < 10:
            return
        query = (
            f"SELECT *, sqrt(width * height) / {usual['side']} AS size, "
            f"greatest(width / height, height / width) AS aspect FROM ({stage}) WHERE width > 0 AND height > 0"
        )
        limit = max(aspect, 2 * usual["aspect"])
        query = f"FROM ({query}) WHERE size > {factor} OR size < {1 / factor} OR aspect > {limit}"
        for row in context.offenders(query):
            shown = f"{row['width']}×{row['height']}"
            if row["aspect"] > limit:
                yield _finding(context, (row["index"], row["source"]), "has an odd aspect", shown, row["aspect"], limit)
            else:
                yield _finding(context, (row["index"], row["source"]), "has an odd size", f"{shown}, usual is a side of {usual['side']:.0f}",
                               row["size"], factor)  # fmt: skip

    def _grey(self, context: Context, stage: str) -> Iterable[Finding]:
        counted = [r for r in context.profile if r["stage"] == 0 and r["kind"] == "image"]
        grey = sum(r["visits"] for r in counted if f"'{r['mode']}'" in _GREY)
        colour = sum(r["visits"] for r in counted if f"'{r['mode']}'" in _COLOUR)
        if not grey or grey > context.options["grey_share"] * (grey + colour):
            return
        for row in context.offenders(f"FROM ({stage}) WHERE mode IN {_GREY}"):
            yield _finding(
                context,
                (row["index"], row["source"]),
                "is grey among coloured pictures",
                f"mode {row['mode']}",
                None,
                None,
            )

    def _looked_at(self, context: Context) -> Iterable[Finding]:
        import numpy as np

        seen: list[tuple[tuple[int, str | None], float, bool, bool]] = []
        try:
            seen += [
                ((found.index, found.source), *_judge(np, found.image))
                for found in pictures(context, context.options["pictures"], exact=True)
                if min(found.image.size) >= 32
            ]
        except Skip as skipped:
            # The checks on recorded statistics have already reported these.
            context.note(f"sharpness was not measured: {skipped}")
        sharp = [score for _, score, _, _ in seen if score > 0]
        usual = float(np.median(sharp)) if len(sharp) >= 10 else 0.0
        coloured = [grey for _, _, colour, grey in seen if colour]
        odd_grey = 0 < sum(coloured) <= context.options["grey_share"] * len(coloured)
        least = min(context.options["blur"], 0.1 * usual)
        for place, score, _, grey in seen:
            if 0 < score < least:
                yield _finding(
                    context, place, "is blurry", f"sharpness {score:.3g}, usual is {usual:.3g}", score, least
                )
            if odd_grey and grey:
                # Among photographs a few grey ones are usual, and they are stored as coloured ones.
                found = _finding(
                    context, place, "is grey among coloured pictures", "its channels are equal", None, None
                )
                yield replace(found, severity="info")


def _judge(np: Any, image: Any) -> tuple[float, bool, bool]:
    """Return the sharpness (variance of the Laplacian), whether the mode has colour, and whether all pixels are grey."""
    if max(image.size) > SIDE:
        image = image.reduce(-(-max(image.size) // SIDE)) if image.mode in ("L", "RGB", "RGBA") else image
    colour = image.mode == "RGB"
    pixels = np.asarray(image, dtype=np.int16) if colour else None
    grey = bool(colour and pixels is not None and np.ptp(pixels, axis=2).max() <= 3)
    level = np.asarray(image.convert("L"), dtype=np.float32)
    edges = 4 * level[1:-1, 1:-1] - level[:-2, 1:-1] - level[2:, 1:-1] - level[1:-1, :-2] - level[1:-1, 2:]
    # With almost no contrast, sharpness and colour are meaningless; brightness was checked before.
    faint = float(level.std()) < _FAINT
    return 0.0 if faint else float(edges.var()), colour and not faint, grey and not faint


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
