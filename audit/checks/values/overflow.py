"""`overflow`: levels of 8 bits that were raised above 255, or lowered below 0, and came out at the other end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from audit.checks.base import Check, Finding, Option, Skip, settings
from audit.checks.context import Context
from audit.checks.shared.files import choose_files, open_files
from audit.checks.shared.hashes import Array
from audit.checks.shared.stored_values import Visit, channel_axis, stored_values
from audit.picture_formats import open_picture

#: Levels wrap around where the output falls from above the second to below the first, within so many levels of the input.
_LOW, _HIGH, _NEAR = 55, 200, 8
#: A stage maps levels if so many pixels of one level become one level; elsewhere its output may not fall in more than this share.
_MAPPED, _FALLING = 0.98, 0.05
#: So many pixels must have wrapped, at so many levels.
_PIXELS, _LEVELS = 10, 3
#: Among so many pictures, one alone is a note.
_SEVERAL = 8


class Overflow(Check):
    """Compare a stage's 8-bit input and output, level by level, where both are stored."""

    description = "8-bit levels wrapped around: a stage, or loading, made bright pixels dark or dark ones bright."
    question = "Did 8-bit levels wrap around?"
    statistic = (
        "none: the map from levels before a stage to levels after it falls from above 200 to below 55, and rises "
        "elsewhere"
    )
    assumes = "the stage maps each level to one level"
    options = settings(samples=Option(32, "Compare the pixels of at most this many samples, evenly chosen."))

    def run(self, context: Context) -> Iterable[Finding]:
        found: dict[int, list[tuple[int, int, int]]] = {}
        seen: dict[int, int] = {}
        for stage, index, before, after in self._pairs(context):
            seen[stage] = seen.get(stage, 0) + 1
            if (wrapped := find_wrapped_levels(before, after)) is not None:
                found.setdefault(stage, []).append((index, *wrapped))
        if not seen:
            raise Skip("no stage has 8-bit pictures of one size before and after it that were stored whole")
        for stage, cases in sorted(found.items()):
            index, level, became = cases[0]
            yield Finding(
                f"{context.stage_name(stage)} let 8-bit levels wrap around in {len(cases)} pictures that were compared (index {index}: the "
                f"level {level} became {became}, though lower levels became brighter). Compute with a wider type, then clip to 0–255.",
                index=index,
                stage=stage,
                value=len(cases),
                threshold=0,
                sql=context.evidence("stage_outputs", index, f"stage <= {stage}"),
                # Pixels that a stage moved a little look so in 1 of 500 drawings.
                severity="info" if len(cases) == 1 and seen[stage] >= _SEVERAL else None,
            )

    def _pairs(self, context: Context) -> Iterator[tuple[int, int, Array, Array]]:
        """Yield each stage that maps 8-bit values to 8-bit values of their shape, the sample, and the values before and after."""
        if not any(row["dtype"] == "uint8" for row in context.profile):
            return
        last: tuple[Visit, Array] | None = None
        loaded: dict[int, Array] = {}
        for visit, stage, value in stored_values(context, max(1, context.options["samples"])):
            if value is None:
                last = None
                continue
            if last is not None and last[0] == visit and is_comparable(last[1], value):
                yield stage, visit[1], last[1], value
            last = visit, value
            if stage == 0 and value.dtype == np.uint8:
                loaded[visit[1]] = value
        if {row["mode"] for row in context.profile if row["stage"] == 0} <= {"L", "RGB"}:
            yield from _from_files(context, loaded)


def _from_files(context: Context, loaded: dict[int, Array]) -> Iterator[tuple[int, int, Array, Array]]:
    """Yield the pixels of some files, and the grey levels or colours that were loaded from them."""
    if context.facts.root is None or not loaded:
        return
    listed = ", ".join(map(str, loaded))
    for file, found in open_files(choose_files(context, 0, f"index IN ({listed})")):
        value = loaded[file.index]
        try:
            if isinstance(found, OSError):
                raise found
            with found, open_picture(found) as image:
                before = np.asarray(image.convert("L" if value.ndim == 2 else "RGB"))
        except Exception:
            continue
        yield 0, file.index, before, value


def is_comparable(before: Array, after: Array) -> bool:
    """Return whether both are bytes of one shape."""
    return before.shape == after.shape and before.dtype == after.dtype == np.uint8 and before.size > 0


def find_wrapped_levels(before: Array, after: Array) -> tuple[int, int] | None:
    """Return the first level that came out at the other end, and what it became; None if none did or more was changed."""
    if not is_comparable(before, after):
        return None
    axis = channel_axis(before.shape)
    if axis is not None:
        # Each channel may be mapped in its own way.
        pairs = zip(np.moveaxis(before, axis, 0), np.moveaxis(after, axis, 0), strict=True)
        return next((found for one, two in pairs if (found := _count_wrapped(one, two)) is not None), None)
    return _count_wrapped(before, after)


def _count_wrapped(before: Array, after: Array) -> tuple[int, int] | None:
    table = np.bincount(before.ravel().astype(np.int64) * 256 + after.ravel(), minlength=256 * 256).reshape(256, 256)
    counts = table.sum(axis=1)
    # A level of one pixel is mapped to one level by any stage, and the ground of a drawing to itself by most.
    shown = counts >= 2
    shown[counts.argmax()] = False
    mapped = table.max(axis=1)
    if mapped.sum() < _MAPPED * before.size or not shown.any() or mapped[shown].sum() < _MAPPED * counts[shown].sum():
        return None
    levels = np.flatnonzero(counts)
    became = table.argmax(axis=1)[levels]
    falls = np.flatnonzero(np.diff(became) < 0)
    wraps = falls[(became[falls] >= _HIGH) & (became[falls + 1] <= _LOW) & (np.diff(levels)[falls] <= _NEAR)]
    if not len(wraps) or len(falls) - len(wraps) > _FALLING * len(levels):
        return None
    first = int(wraps[0]) + 1
    enough = (len(part) >= _LEVELS and counts[part].sum() >= _PIXELS for part in (levels[:first], levels[first:]))
    return (int(levels[first]), int(became[first])) if all(enough) else None
