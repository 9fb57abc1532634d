"""A Python value as SQL text, where a statement takes no parameters."""

from __future__ import annotations


def literal(value: object) -> str:
    """Return a value as SQL text; lists become SQL lists."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    return "'" + str(value).replace("'", "''") + "'"
