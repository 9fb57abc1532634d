"""Writes the tables of docs/FORMAT-values.md from the kinds of value (audit/values), each of which declares its rows.

python docs/make_values.py

The text between the tables is written by hand and kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).parent / "FORMAT-values.md"


def reference() -> str:
    """Return the page with the rows of the kinds that the code has."""
    from audit.values import KINDS

    kinds = KINDS.values()
    text = PAGE.read_text(encoding="utf-8")
    text = _fill(text, "| kind | `dtype` in the header |", [row for kind in kinds for row in kind.digest_rows])
    return _fill(text, "| kind | encoding |", [row for kind in kinds for row in kind.encoding_rows])


def _fill(text: str, heading: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Replace the rows of the table that begins with a heading."""
    made = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    table = rf"^({re.escape(heading)}.*\n\|[- |]+\n)(?:\|.*\n)*"
    return re.sub(table, lambda found: found[1] + made, text, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
