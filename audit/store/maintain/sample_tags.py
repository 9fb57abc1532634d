"""Tags and notes that a person gives to samples: rows of the table `tags`, which queries see like any other.

A run's tags are one part, rewritten with each change under the run's lock. Nothing that was recorded is touched, and
neither are the user's files.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from audit.errors import NotFound, UsageError
from audit.store.maintain.amend import replace_rows
from audit.store.read.reader import Reader

_LONGEST = 100


def tag_samples(
    reader: Reader, run_id: str, indices: Iterable[int], tag: str, *, note: str | None = None, remove: bool = False
) -> int:
    """Give samples of a run a tag, or take it away. Return how many rows changed. The reader sees the change."""
    tag = tag.strip()
    if not tag or len(tag) > _LONGEST or not tag.isprintable():
        raise UsageError(f"A tag must have 1 to {_LONGEST} printable characters, got {tag[:40]!r}.")
    wanted = set(indices)
    changed = 0

    def change(before: list[dict[str, Any]]) -> list[dict[str, Any]]:
        nonlocal changed
        kept = [row for row in before if row["tag"] != tag or row["index"] not in wanted]
        changed = len(before) - len(kept) if remove else len(wanted)
        return kept if remove else [*kept, *_tag_rows(reader, run_id, wanted, tag, note)]

    replace_rows(reader, run_id, "tags", change)
    return changed


def _tag_rows(reader: Reader, run_id: str, wanted: set[int], tag: str, note: str | None) -> list[dict[str, Any]]:
    listed = ", ".join(str(int(index)) for index in sorted(wanted)) or "NULL"
    found = reader.sql(
        f"SELECT index, any_value(source) FROM samples WHERE run_id = ? AND index IN ({listed}) GROUP BY index",
        parameters=[run_id],
    ).fetchall()
    if len(found) < len(wanted):
        missing = sorted(wanted - {row[0] for row in found})
        raise NotFound(
            f"The run {run_id} has no sample with index {missing[0]}.",
            hint=f"See them with: audit sql 'FROM samples' --run {run_id}",
        )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    common = {"run_id": run_id, "tag": tag, "note": note or None, "tagged_at": now}
    return [{**common, "index": index, "source": source} for index, source in sorted(found)]
