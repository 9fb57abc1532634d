"""The source files of a run, as far as they are here: an even choice of them where there are many."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from audit.checks.context import Context


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file that a sample was read from."""

    index: int
    source: str
    path: Path
    digest: str | None
    bytes: int | None


def evenly(most: int, total: int) -> str:
    """An SQL condition that about `most` of `total` indices meet, spread over all of them, the same each time."""
    return f"(index * {most}) % {total} < {most}"


def chosen_files(context: Context, most: int, where: str = "true") -> list[SourceFile]:
    """At most `most` files (0: all) of the items that meet a condition; says how many were left out."""
    condition = f"root IS NOT NULL AND source NOT LIKE '%://%' AND {where}"
    total = context.value(f"SELECT count(*) FROM {context.items} WHERE {condition}")
    if most and total > most:
        context.note(f"looked at {most:,} of {total:,} files")
        condition += f" AND {evenly(most, total)}"
    rows = context.rows(
        f"SELECT index, source, root, source_raw, source_digest, source_bytes FROM {context.items} "
        f"WHERE {condition} ORDER BY index"
    )
    return [
        SourceFile(
            row["index"],
            row["source"],
            Path(os.fsdecode(os.path.join(os.fsencode(row["root"]), row["source_raw"] or os.fsencode(row["source"])))),
            row["source_digest"],
            row["source_bytes"],
        )
        for row in rows
    ]
