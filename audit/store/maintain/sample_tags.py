"""Tags and notes that a person gives to samples: rows of the table `tags`, which queries see like any other.

A run's tags are one part, rewritten with each change under the run's lock. Nothing that was recorded is touched, and
neither are the user's files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from audit.errors import NotFound, UsageError
from audit.store.maintain.amend import replace_rows
from audit.store.read.items import SampleIdentity
from audit.store.read.reader import Reader

_LONGEST = 100


def tag_samples(
    reader: Reader,
    run_id: str,
    indices: Iterable[int],
    tag: str,
    *,
    items: Collection[SampleIdentity] = (),
    note: str | None = None,
    remove: bool = False,
) -> int:
    """Give samples of a run a tag, or take it away. Return how many samples changed. The reader sees the change.

    They are the items, and every sample that has one of the indices.
    """
    tag = tag.strip()
    if not tag or len(tag) > _LONGEST or not tag.isprintable():
        raise UsageError(f"A tag must have 1 to {_LONGEST} printable characters, got {tag[:40]!r}.")
    sources = _sources(reader, run_id, set(indices), set(items))
    touched = {item.index for item in sources}
    changed = 0

    def concerns(row: dict[str, Any]) -> bool:
        item = SampleIdentity(row["index"], row["split"], row["root"])
        return row["tag"] == tag and (item in sources or (item.split is item.root is None and item.index in touched))

    def change(before: list[dict[str, Any]]) -> list[dict[str, Any]]:
        nonlocal changed
        kept = [row for row in before if not concerns(row)]
        changed = len(before) - len(kept) if remove else len(sources)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        common = {"run_id": run_id, "tag": tag, "note": note or None, "tagged_at": now}
        return kept if remove else [*kept, *({**asdict(item), **common, "source": sources[item]} for item in sources)]

    replace_rows(reader, run_id, "tags", change)
    return changed


def _sources(
    reader: Reader, run_id: str, indices: set[int], items: set[SampleIdentity]
) -> dict[SampleIdentity, str | None]:
    """Return the source of each sample that is meant, by index."""
    listed = ", ".join(str(int(index)) for index in sorted(indices | {item.index for item in items})) or "NULL"
    rows = reader.sql(
        "SELECT index, split, root, any_value(source) FROM samples "
        f"WHERE run_id = ? AND index IN ({listed}) GROUP BY ALL ORDER BY ALL",
        parameters=[run_id],
    ).fetchall()
    found = {SampleIdentity(*row[:3]): row[3] for row in rows}
    missing = indices - {item.index for item in found}
    if missing:
        raise NotFound(
            f"The run {run_id} has no sample with index {min(missing)}.",
            hint=f"See them with: audit sql 'FROM samples' --run {run_id}",
        )
    return {item: source for item, source in found.items() if item.index in indices or item in items}
