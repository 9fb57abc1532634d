"""The rows of `calls`: every call of a recorded model, matched to samples or not."""

from __future__ import annotations

from typing import Any

from audit.store import wire as batch

#: So many rows are written at once.
_MANY = 256


class ModelCalls:
    """Gathers a row for each call until there are enough to be written."""

    def __init__(self, run_id: str, submit: Any) -> None:
        self._run_id = run_id
        self._submit = submit
        self._rows: list[dict[str, Any]] = []
        self._count = 0

    def add(self, **columns: Any) -> int:
        """A call; its number among all of the run."""
        number, self._count = self._count, self._count + 1
        self._rows.append(columns | {"run_id": self._run_id, "number": number})
        if len(self._rows) >= _MANY:
            self.flush()
        return number

    def flush(self) -> None:
        """Hand over what was gathered."""
        rows, self._rows = self._rows, []
        if rows:
            names = {name for row in rows for name in row}
            columns = {name: [row.get(name) for row in rows] for name in names}
            self._submit({"calls": batch.table_of("calls", columns)})
