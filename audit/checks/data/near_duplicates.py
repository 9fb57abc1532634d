"""`near_duplicates`: pictures that look the same though their bytes differ."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.checks.shared.pictures import Picture, pictures

_THUMB = 16


class NearDuplicates(Check):
    """Find candidates by a perceptual hash and compare their thumbnails. Pictures without detail are skipped."""

    name = "near_duplicates"
    group = "data"
    description = "Pictures that look the same as another: resized, recompressed, slightly changed."
    severity = "warning"
    needs = ("pictures",)
    options = settings(
        distance=Option(3, "How many of the 64 bits of the hash may differ."),
        difference=Option(5.0, "How much the thumbnails may differ, in levels of 255 on average."),
        pictures=Option(10_000, "Compare at most this many pictures, evenly chosen; 0 compares all."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        import numpy as np

        from audit.checks.shared.hashes import near_pairs

        seen, hashes, thumbs = _looked_at(context)
        if len(seen) < 2:
            return
        pairs = near_pairs(np.array(hashes, dtype=np.uint64), context.options["distance"])
        if not len(pairs):
            return
        stack = np.stack(thumbs).astype(np.int16)
        # In blocks: the thumbnails of all candidates together could take gigabytes.
        pieces = np.array_split(pairs, -(-len(pairs) // 50_000))
        apart = np.concatenate([np.abs(stack[p[:, 0]] - stack[p[:, 1]]).mean(axis=1) for p in pieces])
        close = apart <= context.options["difference"]
        yield from self._findings(context, seen, pairs[close], apart[close])

    def _findings(self, context: Context, seen: list[Picture], pairs: Any, apart: Any) -> Iterable[Finding]:
        first: dict[int, tuple[int, float]] = {}
        for (older, newer), difference in zip(pairs.tolist(), apart.tolist(), strict=True):
            first.setdefault(newer, (older, difference))
        for place, (other, difference) in sorted(first.items()):
            newer, older = seen[place], seen[other]
            if newer.digest is not None and newer.digest == older.digest:
                continue  # the check `duplicates` reports those
            yield Finding(
                f"{newer.source} (index {newer.index}) looks the same as {older.source} (index {older.index}).",
                index=newer.index,
                source=newer.source,
                stage=0,
                value=difference,
                threshold=context.options["difference"],
                sql=f"SELECT index, source, label FROM samples WHERE run_id = {context.run_literal} "
                f"AND index IN ({older.index}, {newer.index})",
            )


def _looked_at(context: Context) -> tuple[list[Picture], list[int], list[Any]]:
    """Return the pictures with enough detail to compare, without their pixels, in order of index."""
    import numpy as np
    from PIL import Image

    from audit.checks.shared.hashes import dhash

    seen: list[tuple[Picture, int, Any]] = []
    for picture in pictures(context, context.options["pictures"]):
        grey = picture.image.convert("L")
        thumb = np.asarray(grey.resize((_THUMB, _THUMB), Image.Resampling.BOX), dtype=np.uint8).reshape(-1)
        if thumb.std() >= 6:
            seen.append((replace(picture, image=None), dhash(grey), thumb))
    seen.sort(key=lambda found: found[0].index)
    return [found[0] for found in seen], [found[1] for found in seen], [found[2] for found in seen]


CHECK = NearDuplicates
