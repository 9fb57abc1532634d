"""How much a store holds, from its manifests alone: no part is opened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from audit.records import Part
from audit.store.read.reader import Reader


@dataclass(slots=True)
class TableStats:
    """One table of the store."""

    table: str
    parts: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(slots=True)
class StoreStats:
    """What a store, or one run of it, holds."""

    location: str
    runs: int = 0
    parts: int = 0
    bytes: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    tables: list[TableStats] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return them as `audit store stats --json` prints them."""
        return asdict(self)


def store_stats(reader: Reader, reference: str | None = None) -> StoreStats:
    """Count runs, parts, rows and bytes of one run, or of all."""
    manifests = [reader.manifest(reference)] if reference else [reader.manifest(run.run_id) for run in reader.runs()]
    found = StoreStats(reader.location, len(manifests))
    for manifest in manifests:
        found.statuses[manifest.run.status] = found.statuses.get(manifest.run.status, 0) + 1
    found.tables = _by_table(part for manifest in manifests for part in manifest.parts)
    found.parts = sum(table.parts for table in found.tables)
    found.bytes = sum(table.bytes for table in found.tables)
    return found


def _by_table(parts: Iterable[Part]) -> list[TableStats]:
    tables: dict[str, TableStats] = {}
    for part in parts:
        table = tables.setdefault(part.table, TableStats(part.table))
        table.parts += 1
        table.rows += part.rows
        table.bytes += part.bytes
    return sorted(tables.values(), key=lambda table: -table.bytes)
