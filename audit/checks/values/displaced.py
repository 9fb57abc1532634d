"""`displaced`: a stage moves the pixels of every picture in the same way: it rolls, turns, mirrors or shuffles them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.hashes import Array
from audit.checks.shared.stored_values import Visit, channel_axis, stored_values

#: A random stage moves fewer samples than this in one way now and then.
_FEWEST = 16
#: Larger pictures are not compared.
_LARGEST = 2**16
#: Turns and mirrors of n×height×width, in words; these may be meant.
_TURNS: dict[str, Callable[[Array], Array]] = {
    "turns the pictures by 90° to the left": lambda pictures: np.rot90(pictures, 1, (1, 2)),
    "turns the pictures by 180°": lambda pictures: np.rot90(pictures, 2, (1, 2)),
    "turns the pictures by 90° to the right": lambda pictures: np.rot90(pictures, 3, (1, 2)),
    "mirrors the pictures left and right": lambda pictures: pictures[:, :, ::-1],
    "mirrors the pictures top and bottom": lambda pictures: pictures[:, ::-1],
    "swaps rows and columns": lambda pictures: pictures.transpose(0, 2, 1),
}


class Displaced(Check):
    """Compare a stage's input and output, pixel by pixel, where both are stored."""

    description = (
        "A stage moves the pixels of every picture in the same way: it rolls them over the border or shuffles them, turns or "
        "mirrors them (notes)."
    )
    question = "Does a stage move all pixels?"
    statistic = "none: in at least 16 samples, each pixel of the input is found in the output at another place, the same place in all samples"
    assumes = "the stage changes no level, or only divides by 255"
    severity = "warning"
    options = settings(samples=Option(32, "Compare the pixels of at most this many samples, evenly chosen."))

    def run(self, context: Context) -> Iterable[Finding]:
        found: dict[int, list[tuple[Array, Array]]] = {}
        visits = set()
        for visit, stage, before, after in self._pairs(context):
            visits.add(visit)
            if before is not None and after is not None:
                found.setdefault(stage, []).append((before, after))
        if not found:
            raise Skip("no stage has pictures before and after it that were stored whole")
        for stage, pairs in sorted(found.items()):
            # A stage that leaves some samples as they are moves the others at random.
            words = move_of(pairs) if len(pairs) == len(visits) >= _FEWEST else None
            if words is not None:
                yield Finding(
                    f"{context.stage_name(stage)} {words}, in all {len(pairs)} samples that were compared.",
                    stage=stage,
                    value=len(pairs),
                    threshold=_FEWEST,
                    sql=f"FROM stage_outputs WHERE run_id = {context.run_literal} AND stage = {stage}",
                    severity="info" if words in _TURNS else None,
                )

    def _pairs(self, context: Context) -> Iterator[tuple[Visit, int, Array | None, Array | None]]:
        """Yield each visit and stage, with the first channel before and after it where both are pictures."""
        last: tuple[Visit, Array | None] | None = None
        for visit, stage, value in stored_values(context, max(_FEWEST, context.options["samples"])):
            plane = None if value is None else _first_channel(value)
            yield visit, stage, last[1] if last is not None and last[0] == visit else None, plane
            last = visit, plane


def move_of(pairs: list[tuple[Array, Array]]) -> str | None:
    """Return in words how all pictures were moved; None if they were not moved, were changed, or each in its own way."""
    if any(len({(one.shape, str(one.dtype)) for one in column}) != 1 for column in zip(*pairs, strict=True)):
        return None
    before, after = (np.stack(column) for column in zip(*pairs, strict=True))
    if before.dtype == np.uint8 and after.dtype == np.float32:
        before = before.astype(np.float32) / np.float32(255)
    if before.dtype != after.dtype or before[0].size != after[0].size or np.array_equal(before, after):
        return None
    if not (
        np.array_equal(before.min(axis=(1, 2)), after.min(axis=(1, 2)))
        and np.array_equal(before.max(axis=(1, 2)), after.max(axis=(1, 2)))
    ):
        return None
    # What one pixel is in all samples is found again elsewhere, if pixels were only moved.
    if not np.array_equal(np.sort(_through_samples(before)), np.sort(_through_samples(after))):
        return None
    for words, move in _TURNS.items():
        if np.array_equal(move(before), after):
            return words
    if before.shape == after.shape:
        _, height, width = before.shape
        for place in np.flatnonzero(_through_samples(before) == _through_samples(after)[0]).tolist():
            down, across = -(place // width) % height, -place % width
            if np.array_equal(np.roll(before, (down, across), (1, 2)), after):
                return f"rolls the pictures over the border, by {down} of {height} rows and {across} of {width} columns"
    return "puts the pixels in other places"


def _through_samples(pictures: Array) -> Array:
    """Return one number for each pixel, which follows from the bits of its values in all samples."""
    flat = pictures.reshape(len(pictures), -1)
    bits = flat.view(f"u{flat.dtype.itemsize}").astype(np.uint64)
    weights = np.random.default_rng(0).integers(1, 2**63, len(bits), dtype=np.uint64) | np.uint64(1)
    # Sums of 64 bits that wrap around: equal for equal pixels, and for others as good as never.
    numbers: Array = (bits * weights[:, None]).sum(axis=0)
    return numbers


def _first_channel(value: Array) -> Array | None:
    """Return one channel of a picture; None if it has another form."""
    axis = channel_axis(value.shape)
    plane = value if value.ndim == 2 else None if axis is None else value.take(0, axis=axis)
    return plane if plane is not None and 0 < plane.size <= _LARGEST else None
