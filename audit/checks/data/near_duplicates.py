"""`near_duplicates`: pictures that look the same though their bytes differ."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.checks.shared.picture_copies import copies


class NearDuplicates(Check):
    """Compare small grey pictures, aligned with each other. Pictures without detail are skipped."""

    description = "Pictures that are copies of another of their split: resized, recompressed, brightened, cropped a little, mirrored, turned, covered in part."
    question = "Is a picture a copy of another?"
    statistic = (
        "the share of a 16×16 grey picture that the other, moved, blurred or with other levels, leaves unexplained; "
        "the limit follows from the number of pairs just beyond it; of pictures that are turned by a few degrees, the same "
        "within a circle; of pictures that are covered in part, the number of parts with equal pixels"
    )
    assumes = (
        "changes are global: size, encoding, brightness, contrast, a crop of a few percent, a mirror, a turn by 90, "
        "180 or 270 degrees or by less than 10; where a part is covered, the rest has the same pixels"
    )
    severity = "warning"
    needs = ("pictures",)
    options = settings(
        distance=Option(3, "With more than 20,000 pictures: how many of the 64 bits of their hashes may differ."),
        pictures=Option(10_000, "Compare at most this many pictures, evenly chosen; 0 compares all."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        found = copies(context, context.options["pictures"], context.options["distance"])
        several = len({row["split"] for row in context.facts.epochs}) > 1
        reported = set()
        for copy in found:
            newer, older = copy.picture, copy.original
            # The check `leakage` reports copies in different splits.
            if newer.sample in reported or newer.split != older.split:
                continue
            reported.add(newer.sample)
            where = f", split {newer.split}" if several else ""
            yield Finding(
                f"{newer.source} (index {newer.index}{where}) {copy.description} {older.source} (index {older.index}).",
                index=newer.index,
                source=newer.source,
                stage=0,
                value=copy.similarity,
                sql=f"SELECT index, source, label FROM samples WHERE run_id = {context.run_literal} "
                f"AND index IN ({older.index}, {newer.index})",
            )
