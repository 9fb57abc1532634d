"""`near_duplicates`: pictures that look the same though their bytes differ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.checks.pictures import pictures

_THUMB = 16


class NearDuplicates(Check):
    """A perceptual hash finds candidates; a thumbnail decides. Pictures without detail are left to `blank`."""

    name = "near_duplicates"
    group = "data"
    description = "Pictures that look the same as another: resized, recompressed, slightly changed."
    severity = "warning"
    needs = ("pictures",)
    options = settings(
        distance=Option(3, "How many of the 64 bits of the hash may differ."),
        difference=Option(5.0, "How much the thumbnails may differ, in levels of 255 on average."),
        pictures=Option(10_000, "At most this many pictures are looked at, evenly chosen; 0 looks at all."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        import numpy as np

        from audit.checks.hashes import near_pairs

        indices, hashes, thumbs = _looked_at(context)
        if len(indices) < 2:
            return
        pairs = near_pairs(np.array(hashes, dtype=np.uint64), context.options["distance"])
        if not len(pairs):
            return
        stack = np.stack(thumbs).astype(np.int16)
        # In pieces: thumbnails of all candidates at once could take gigabytes.
        pieces = np.array_split(pairs, -(-len(pairs) // 50_000))
        apart = np.concatenate([np.abs(stack[p[:, 0]] - stack[p[:, 1]]).mean(axis=1) for p in pieces])
        close = apart <= context.options["difference"]
        yield from self._told(context, indices, pairs[close], apart[close])

    def _told(self, context: Context, indices: list[int], pairs: Any, apart: Any) -> Iterable[Finding]:
        first: dict[int, tuple[int, float]] = {}
        for (a, b), difference in zip(pairs.tolist(), apart.tolist(), strict=True):
            older, newer = sorted((indices[a], indices[b]))
            first.setdefault(newer, (older, difference))
        named = [*first, *(older for older, _ in first.values())][:4_000]
        listed = ", ".join(map(str, sorted(set(named)))) or "-1"
        known = {
            row["index"]: row
            for row in context.rows(
                f"SELECT index, source, source_digest FROM {context.items} WHERE index IN ({listed})"
            )
        }
        for newer, (older, difference) in sorted(first.items()):
            if newer not in known or older not in known:
                context.unlisted += 1
                continue
            if known[newer]["source_digest"] is not None and (
                known[newer]["source_digest"] == known[older]["source_digest"]
            ):
                continue  # the check `duplicates` tells those
            yield Finding(
                f"{known[newer]['source']} (index {newer}) looks the same as {known[older]['source']} (index {older}).",
                index=newer,
                source=known[newer]["source"],
                stage=0,
                value=difference,
                threshold=context.options["difference"],
                sql=f"SELECT index, source, label FROM samples WHERE run_id = {context.run_literal} "
                f"AND index IN ({older}, {newer})",
            )


def _looked_at(context: Context) -> tuple[list[int], list[int], list[Any]]:
    import numpy as np
    from PIL import Image

    from audit.checks.hashes import dhash

    indices: list[int] = []
    hashes: list[int] = []
    thumbs: list[Any] = []
    for index, image in pictures(context, context.options["pictures"]):
        grey = image.convert("L")
        thumb = np.asarray(grey.resize((_THUMB, _THUMB), Image.Resampling.BOX), dtype=np.uint8).reshape(-1)
        if thumb.std() >= 6:
            indices.append(index)
            hashes.append(dhash(grey))
            thumbs.append(thumb)
    return indices, hashes, thumbs


CHECK = NearDuplicates
