"""`near_duplicates`: pictures that look the same though their bytes differ."""

from __future__ import annotations

from collections.abc import Iterable

from audit.checks.base import Check, Finding, Option, settings
from audit.checks.context import Context
from audit.checks.shared.copies import Copy, copies
from audit.store.sql_literal import literal


class NearDuplicates(Check):
    """Compare small grey pictures, aligned with each other. Pictures without detail are skipped."""

    description = "Pictures that are copies of another of their split: resized, recompressed, brightened, cropped a little, mirrored, turned."
    severity = "warning"
    needs = ("pictures",)
    options = settings(
        distance=Option(3, "With more than 20,000 pictures: how many of the 64 bits of their hashes may differ."),
        pictures=Option(10_000, "Compare at most this many pictures, evenly chosen; 0 compares all."),
    )

    def run(self, context: Context) -> Iterable[Finding]:
        found = copies(context, context.options["pictures"], context.options["distance"])
        split = splits_of(context, found)
        reported: set[int] = set()
        for copy in found:
            newer, older = copy.picture, copy.original
            # The check `leakage` reports copies in different splits.
            if newer.index in reported or split.get(newer.source) != split.get(older.source):
                continue
            reported.add(newer.index)
            yield Finding(
                f"{newer.source} (index {newer.index}) {copy.said} {older.source} (index {older.index}).",
                index=newer.index,
                source=newer.source,
                stage=0,
                value=copy.similarity,
                sql=f"SELECT index, source, label FROM samples WHERE run_id = {context.run_literal} "
                f"AND index IN ({older.index}, {newer.index})",
            )


def splits_of(context: Context, found: list[Copy]) -> dict[str, str | None]:
    """Return the split of each source that occurs in some copies."""
    sources = {one.source for copy in found for one in (copy.picture, copy.original)}
    if not sources:
        return {}
    rows = context.rows(
        f"SELECT source, min(split) AS split FROM {context.samples} "
        f"WHERE source IN ({', '.join(map(literal, sorted(sources)))}) GROUP BY source"
    )
    return {row["source"]: row["split"] for row in rows}
