"""`outliers`: pictures unlike all others, such as a scan among photographs, noise, or pictures of another dataset."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.picture_grids import blocks, spread
from audit.checks.shared.picture_signatures import sharpness_of, signatures

Array = np.ndarray[Any, Any]

#: A spread below this counts as this: where nearly all pictures have no black at all, a little of it is not far away.
_LEAST = np.array([5.0, 3.0, 0.05, 0.05, 0.05, 0.15, 0.2, 0.2, 0.2, 0.2, 0.3, 0.1, 0.05])
#: Bands of spatial frequency, in periods over the width of a thumbnail.
_BANDS = ((0.5, 2), (2, 4), (4, 8), (8, 23))
#: The tail of the distances is described from the first of these quantiles on, by how far away the second is.
_TAIL, _FARTHEST = 0.9, 0.98
#: Of recorded embeddings, the distance to this many neighbours is measured.
_NEIGHBOURS = 5


class Outliers(Check):
    """Measure how far each picture lies from the centre of all, or from its neighbours in a recorded embedding."""

    description = (
        "Pictures far from all others in levels, detail, texture and palette, or in the embedding of `audit embed`."
    )
    question = "Is a picture unlike all others?"
    statistic = (
        "Mahalanobis distance over 13 measures of a grey thumbnail (levels, detail, texture, palette), and the "
        "distance to the fifth neighbour in a recorded embedding; the tail of the distances, described by their 90 % "
        "and 98 % quantiles, says how many are expected beyond a distance; notes lie where 1 is expected, and warnings "
        "where so many are found in at most 0.5 % of runs by chance (Poisson): one alone lies farther away than each "
        "of five"
    )
    assumes = "at most 2 % are unlike the rest; the tail falls off exponentially or faster"
    severity = "warning"
    needs = ("pictures",)
    options = settings(
        chance=Option(
            0.005, "Report pictures only if at most this share of runs without outliers has as many that far away."
        ),
        noted=Option(
            1.0,
            "Less distant pictures are notes: the number of notes that is expected by chance in a run without outliers.",
        ),
        share=Option(0.02, "Report nothing if more than this share is far away: they are a group of their own."),
        samples=Option(300, "Check only if there are at least this many pictures."),
        pictures=Option(10_000, "Measure at most this many pictures, evenly chosen; 0 measures all."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        given = signatures(context, context.options["pictures"])
        count, needed = len(given.pictures), context.options["samples"]
        if count < needed:
            raise Skip(f"the run has {count} pictures with enough detail; at least {needed} are needed")
        share, limits = context.options["share"], (context.options["noted"], context.options["chance"])
        far, sure = measure_distance(measures(given.thumbnails), limits)
        embedded = _measure_embedding(context, [picture.index for picture in given.pictures], limits)
        if embedded is not None:
            far, sure = np.maximum(far, embedded[0]), sure | embedded[1]
        chosen = np.flatnonzero(far > 1)
        context.note(f"{len(chosen):,} of {count:,} pictures lie far from the others")
        if len(chosen) > max(2, share * count):
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
                severity=None if sure[place] else "info",
            )


def measures(thumbnails: Array) -> Array:
    """Return 13 measures of each picture: its levels, its detail, its texture and its palette."""
    return np.concatenate([_measures(block) for block in blocks(thumbnails)])


def _measures(thumbnails: Array) -> Array:
    """Return for each picture: brightness, contrast, detail, its finest part, the share of black or white, and more."""
    grey = thumbnails.astype(np.float32)
    detail, sharpness = sharpness_of(grey)
    contrast = spread(grey)
    extreme = ((grey < 8) | (grey > 247)).mean(axis=(1, 2))
    levels = [
        grey.mean(axis=(1, 2)),
        contrast,
        detail,
        sharpness,
        detail - np.log1p(contrast),
        np.sqrt(extreme),
    ]
    return np.stack([*levels, *_texture(grey), *_palette(thumbnails)], axis=1)


def _texture(grey: Array) -> list[Array]:
    """Return the share of each band of spatial frequencies, and how much more of it is vertical than horizontal."""
    height, width = grey.shape[1:]
    power = _power(grey - grey.mean(axis=(1, 2), keepdims=True)).reshape(len(grey), -1)
    down, across = np.abs(np.fft.fftfreq(height)) * height, np.fft.rfftfreq(width) * width
    radius = np.hypot(down[:, None], across[None])
    parts = [(radius >= low) & (radius < high) for low, high in _BANDS]
    parts += [down[:, None] > across[None], down[:, None] < across[None]]
    # One product instead of a copy of the spectrum for each part.
    *bands, vertical, horizontal = (power @ np.stack(parts).reshape(len(parts), -1).T.astype(np.float32)).T
    whole = power.sum(axis=1) + 1e-3
    return [*(np.log(band / whole + 1e-4) for band in bands), np.log(vertical + 1) - np.log(horizontal + 1)]


def _power(grey: Array) -> Array:
    """Return half of the power spectrum of each picture; of many small ones, products take a third of the time of `rfft2`."""
    count, height, width = grey.shape
    columns = np.fft.rfft(np.eye(width)).astype(np.complex64)
    rows = np.fft.fft(np.eye(height)).astype(np.complex64)
    half = columns.shape[1]
    across = grey.reshape(-1, width) @ np.concatenate([columns.real, columns.imag], axis=1)
    spectrum = np.concatenate([rows.real, rows.imag]) @ across.reshape(count, height, 2 * half)
    real = spectrum[:, :height, :half] - spectrum[:, height:, half:]
    imaginary = spectrum[:, :height, half:] + spectrum[:, height:, :half]
    power: Array = real**2 + imaginary**2
    # A real picture's other half of the spectrum is the mirror image of this one.
    power[:, :, 1 : (width + 1) // 2] *= 2
    return power


def _palette(thumbnails: Array) -> list[Array]:
    """Return how evenly 32 grey levels are used (entropy), and the share of the commonest."""
    bins = (thumbnails.reshape(len(thumbnails), -1) >> 3) + 32 * np.arange(len(thumbnails))[:, None]
    counts = np.bincount(bins.ravel(), minlength=32 * len(thumbnails)).reshape(-1, 32)
    share = counts / counts.sum(axis=1, keepdims=True)
    return [-(share * np.log(share + 1e-9)).sum(axis=1), np.sqrt(share.max(axis=1))]


def _measure_embedding(context: Context, indices: list[int], limits: tuple[float, float]) -> tuple[Array, Array] | None:
    """Return what `measure_distance` does for the distances to neighbours in the embedding of `audit embed`."""
    if not context.facts.counts.get("embeddings"):
        return None
    rows = context.rows(f"SELECT index, vector FROM embeddings WHERE run_id = {context.run_literal} ORDER BY epoch")
    known = {row["index"]: row["vector"] for row in rows}
    if len(known) < len(indices) or any(index not in known for index in indices):
        context.note("the embedding does not have all pictures, and was not used")
        return None
    vectors = np.array([known[index] for index in indices], np.float32)
    lengths = (vectors**2).sum(axis=1)
    distances = np.empty(len(vectors))
    for start in range(0, len(vectors), 1_000):
        table = lengths[start : start + 1_000, None] + lengths - 2 * vectors[start : start + 1_000] @ vectors.T
        distances[start : start + 1_000] = np.partition(table, _NEIGHBOURS, axis=1)[:, _NEIGHBOURS]
    context.note("pictures were also compared by their recorded embedding")
    return _relate_to_limits(np.sqrt(np.maximum(distances, 0)), *limits)


def measure_distance(facts: Array, limits: tuple[float, float] = (1.0, 0.005)) -> tuple[Array, Array]:
    """Return each row's distance from the centre, relative to the limit of a note, and whether it is a warning.

    `limits` are the number of notes that is expected by chance, and the chance at which distances are warnings.
    """
    centre = np.median(facts, axis=0)
    scale = np.maximum(np.subtract(*np.percentile(facts, [75, 25], axis=0)) / 1.349, _LEAST)
    standard = (facts - centre) / scale
    # The covariance of the inner three quarters: outliers must not widen it.
    inner = standard[(standard**2).sum(axis=1) <= np.percentile((standard**2).sum(axis=1), 75)]
    shape = np.cov(inner, rowvar=False) + 0.05 * np.eye(standard.shape[1])
    distance = np.sqrt(np.einsum("nd,de,ne->n", standard, np.linalg.inv(shape), standard))
    return _relate_to_limits(distance, *limits)


def _relate_to_limits(distance: Array, noted: float, chance: float) -> tuple[Array, Array]:
    """Return distances relative to the limit of a note, and which of them are warnings.

    The tail is taken for exponential, as that of photographs, clothes and digits is: its scale follows from the 90 % and the
    98 % quantile, which few outliers do not change. It says how many are expected beyond a distance; how many are there is
    a Poisson number. One alone must be far away; five that are a little nearer are as unlikely.
    """
    first, second = np.quantile(distance, [_TAIL, _FARTHEST])
    scale = max(second - first, 1e-6) / math.log((1 - _TAIL) / (1 - _FARTHEST))
    # So many distances lie between the quantiles: of few, the scale is uncertain by its standard error.
    scale *= 1 + 1 / math.sqrt((_FARTHEST - _TAIL) * len(distance))
    beyond = (1 - _TAIL) * len(distance)
    limit = first + scale * math.log(max(beyond / noted, 1.0))
    farthest = np.sort(distance[distance > limit])[::-1]
    expected = beyond * np.exp(-(farthest - first) / scale)
    unlikely = [n for n, mean in enumerate(expected.tolist(), 1) if _chance_of(n, mean) <= chance]
    warned: Array = distance >= farthest[max(unlikely) - 1] if unlikely else np.zeros(len(distance), bool)
    return distance / limit, warned


def _chance_of(count: int, mean: float) -> float:
    """Return the probability that a Poisson number is at least `count`."""
    return 1 - sum(math.exp(-mean + n * math.log(mean) - math.lgamma(n + 1)) for n in range(count)) if mean > 0 else 0.0
