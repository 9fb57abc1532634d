"""`displaced`: a stage moves the pixels of every picture in the same way: it rolls, turns or mirrors them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.hashes import Array
from audit.checks.shared.stored_values import Visit, channel_axis, stored_values

#: A random stage moves fewer samples than this in one way now and then.
_FEWEST = 16
#: What a stage may do to all pictures, in words; a roll is seldom meant, the others may be.
_TURNS = {
    "turns by 90° to the left": lambda planes: np.rot90(planes, 1, (1, 2)),
    "turns by 180°": lambda planes: np.rot90(planes, 2, (1, 2)),
    "turns by 90° to the right": lambda planes: np.rot90(planes, 3, (1, 2)),
    "mirrors left and right": lambda planes: planes[:, :, ::-1],
    "mirrors top and bottom": lambda planes: planes[:, ::-1],
    "swaps rows and columns": lambda planes: planes.transpose(0, 2, 1),
}


class Displaced(Check):
    """Compare a stage's input and output, pixel by pixel, where both are stored."""

    description = "A stage moves the pixels of every picture in the same way: it rolls them over the border, turns or mirrors them (notes)."
    severity = "warning"
    options = settings(samples=Option(32, "Compare the pixels of at most this many samples, evenly chosen."))

    def run(self, context: Context) -> Iterable[Finding]:
        moves: dict[int, list[set[str]]] = {}
        for stage, before, after in self._pairs(context):
            known = moves.setdefault(stage, [])
            # What does not hold for all samples so far need not be tried again.
            if not known or known[-1]:
                found = moves_between(before, after)
                known.append(found & known[-1] if known else found)
        if not moves:
            raise Skip("no stage has pictures before and after it that were stored whole")
        for stage, known in sorted(moves.items()):
            if len(known) < _FEWEST or not known[-1]:
                continue
            words = min(known[-1])
            rolled = words.startswith("rolls")
            yield Finding(
                f"{context.stage_name(stage)} {words} in all {len(known)} samples that were compared"
                + (": what leaves at one border comes in at the other." if rolled else "."),
                stage=stage,
                value=len(known),
                threshold=_FEWEST,
                sql=f"FROM stage_outputs WHERE run_id = {context.run_literal} AND stage = {stage}",
                severity=None if rolled else "info",
            )

    def _pairs(self, context: Context) -> Iterator[tuple[int, Array, Array]]:
        """Yield each stage with pictures before and after it, as channels×height×width."""
        last: tuple[Visit, Array] | None = None
        for visit, stage, value in stored_values(context, max(_FEWEST, context.options["samples"])):
            planes = None if value is None else _planes(value)
            if planes is not None and last is not None and last[0] == visit and len(planes) == len(last[1]):
                yield stage, last[1], planes
            last = None if planes is None else (visit, planes)


def moves_between(before: Array, after: Array) -> set[str]:
    """Return the words for all moves that make one picture of the other; nothing if it was not moved, or was changed."""
    if before.dtype == np.uint8 and after.dtype == np.float32:
        before = before.astype(np.float32) / np.float32(255)
    # A picture of one value looks the same however it is moved.
    if before.dtype != after.dtype or sorted(before.shape) != sorted(after.shape) or before.min() == before.max():
        return set()
    if before.shape == after.shape and (before == after).all():
        return set()
    if before.min() != after.min() or before.max() != after.max():
        return set()
    found = {words for words, move in _TURNS.items() if np.array_equal(move(before), after)}
    if before.shape != after.shape:
        return found
    for axis, words in ((1, "rows"), (2, "columns")):
        first = after.take(0, axis=axis)
        for place in range(1, before.shape[axis]):
            if np.array_equal(first, before.take(place, axis=axis)) and np.array_equal(
                np.roll(before, -place, axis=axis), after
            ):
                found.add(f"rolls the pictures by {before.shape[axis] - place} of {before.shape[axis]} {words}")
    return found


def _planes(value: Array) -> Array | None:
    """Return a picture as channels×height×width; None if it has another form."""
    if value.ndim == 2:
        return value[None]
    axis = channel_axis(value.shape)
    return None if axis is None or not value.size else np.moveaxis(value, axis, 0)
