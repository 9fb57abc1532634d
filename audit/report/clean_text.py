"""Text from a file name, a label or an error, as a terminal may show it: as text, never as markup."""

from __future__ import annotations

from typing import Any


def clean(value: Any) -> str:
    """Return the text without characters that move the cursor or break a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))
