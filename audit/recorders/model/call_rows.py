"""The rows of `calls`: every call of a recorded model, matched to samples or not."""

from __future__ import annotations

from typing import Any

from audit.recorders.model.unpredicted_batch import BatchRows
from audit.store import wire

#: So many rows are written at once.
_MANY = 256


class CallRows:
    """Gathers a row for each call until there are enough to be written."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._rows: list[dict[str, Any]] = []
        self._count = 0

    def add(self, **columns: Any) -> int:
        """Add a call; return its number among all calls of the run."""
        number, self._count = self._count, self._count + 1
        self._rows.append(columns | {"run_id": self._run_id, "number": number})
        return number

    def take_rows(self, least: int = _MANY) -> list[BatchRows]:
        """Return what was gathered, if there are at least so many calls."""
        if not self._rows or len(self._rows) < least:
            return []
        rows, self._rows = self._rows, []
        names = {name for row in rows for name in row}
        columns = {name: [row.get(name) for row in rows] for name in names}
        return [BatchRows(tables={"calls": wire.table_of("calls", columns)})]
