"""A condition that a user wrote, such as that of `--where`: checked by itself, so that an error shows it and no other SQL."""

from __future__ import annotations

import re

from audit.errors import QueryError
from audit.store.read.reader import Reader

_LINE = re.compile(r"\n\nLINE (\d+): (.*)", re.DOTALL)


def require_condition(reader: Reader, view: str, condition: str) -> None:
    """Raise QueryError if the text is not a condition over the view's columns."""
    # The condition begins its own line: a comment at its end cannot swallow the bracket, and lines can be counted.
    query = f"SELECT 1 FROM {view} WHERE (\n{condition}\n) LIMIT 0"
    try:
        reader.sql(query).fetchall()
    except QueryError as error:
        hint = f"See the columns with: audit sql 'DESCRIBE {view}'"
        raise QueryError(f"The condition is not valid. {_explain(error.message, condition)}", hint=hint) from error


def _explain(message: str, condition: str) -> str:
    """Return DuckDB's message with the number of the line in the condition, or that the condition ends too early."""
    shown = _LINE.search(message)
    if shown is None:
        return message
    line = int(shown[1]) - 1
    if line > len(condition.splitlines()):
        return f"It is incomplete: {' '.join(condition.split())}"
    return f"{message[: shown.start()]}\n\nLINE {line}: {shown[2]}"
