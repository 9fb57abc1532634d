"""`outliers`: pictures unlike all others, such as a scan among photographs, noise, or pictures of another dataset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.copies import signatures

Array = np.ndarray[Any, Any]

#: A spread below this counts as this: where nearly all pictures have no black at all, a little of it is not far away.
_LEAST = np.array([5.0, 3.0, 0.05, 0.05, 0.05, 0.15])


class Outliers(Check):
    """Measure how far each picture lies from the centre of all, in brightness, contrast, detail and extremes."""

    name = "outliers"
    group = "data"
    description = (
        "Pictures far from all others in brightness, contrast, sharpness, fine detail and share of black or white."
    )
    severity = "warning"
    needs = ("pictures",)
    options = settings(
        factor=Option(
            3.0, "Report a picture beyond the median distance by this many times the way to the 95 % quantile."
        ),
        share=Option(0.02, "Report nothing if more than this share is far away: they are a group of their own."),
        samples=Option(100, "Check only if there are at least this many pictures."),
        pictures=Option(10_000, "Measure at most this many pictures, evenly chosen; 0 measures all."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        given = signatures(context, context.options["pictures"])
        count, needed = len(given.pictures), context.options["samples"]
        if count < needed:
            raise Skip(f"the run has {count} pictures with enough detail; at least {needed} are needed")
        far = outlying(measures(given.thumbnails), context.options["factor"])
        chosen = np.flatnonzero(far > 1)
        context.note(f"{len(chosen):,} of {count:,} pictures lie far from the others")
        if len(chosen) > max(2, context.options["share"] * count):
            return
        for place in chosen[np.argsort(-far[chosen])]:
            picture = given.pictures[int(place)]
            yield Finding(
                f"{picture.source} (index {picture.index}) is unlike the other pictures: {far[place]:.1f} times as far from "
                "the centre as the limit.",
                index=picture.index,
                source=picture.source,
                stage=0,
                value=float(far[place]),
                threshold=1.0,
                sql=context.evidence("stage_outputs", picture.index, "stage = 0"),
            )


def measures(thumbnails: Array) -> Array:
    """Return for each picture: brightness, contrast, detail, its finest part, and the share of black or white."""
    grey = thumbnails.astype(np.float32)
    down, across = np.diff(grey, axis=1)[:, :, :-1], np.diff(grey, axis=2)[:, :-1, :]
    detail = np.sqrt((down**2 + across**2).mean(axis=(1, 2)))
    fine = np.abs(
        grey[:, 1:-1, 1:-1] * 4 - grey[:, :-2, 1:-1] - grey[:, 2:, 1:-1] - grey[:, 1:-1, :-2] - grey[:, 1:-1, 2:]
    )
    contrast = grey.std(axis=(1, 2))
    extreme = ((grey < 8) | (grey > 247)).mean(axis=(1, 2))
    return np.stack(
        [
            grey.mean(axis=(1, 2)),
            contrast,
            np.log1p(detail),
            np.log1p(fine.mean(axis=(1, 2))) - np.log1p(detail),
            np.log1p(detail) - np.log1p(contrast),
            np.sqrt(extreme),
        ],
        axis=1,
    )


def outlying(facts: Array, factor: float) -> Array:
    """Return each row's distance from the centre, relative to a limit that follows from the bulk of the rows."""
    centre = np.median(facts, axis=0)
    scale = np.maximum(np.subtract(*np.percentile(facts, [75, 25], axis=0)) / 1.349, _LEAST)
    standard = (facts - centre) / scale
    # The covariance of the inner three quarters: outliers must not widen it.
    inner = standard[(standard**2).sum(axis=1) <= np.percentile((standard**2).sum(axis=1), 75)]
    shape = np.cov(inner, rowvar=False) + 0.05 * np.eye(standard.shape[1])
    distance = np.sqrt(np.einsum("nd,de,ne->n", standard, np.linalg.inv(shape), standard))
    middle, edge = np.percentile(distance, [50, 95])
    relative: Array = distance / (middle + factor * max(edge - middle, 1e-6))
    return relative


CHECK = Outliers
