"""Writes the tables of docs/FORMAT-values.md from the kinds of value (audit/values), each of which declares its rows.

The table of versions is written from the kinds that came with one, and from `RECIPE_CHANGES` of audit/values/hashing.py.

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
    from audit.values import DIGEST_VERSION, KINDS

    kinds = KINDS.values()
    text = PAGE.read_text(encoding="utf-8")
    text = re.sub(r"^This is version \d+ of", f"This is version {DIGEST_VERSION} of", text, flags=re.MULTILINE)
    earlier = [(str(version), describe_version(version)) for version in range(DIGEST_VERSION - 1, 0, -1)]
    text = _fill(text, "| version | what differs", earlier)
    text = _fill(text, "| kind | `dtype` in the header |", [row for kind in kinds for row in kind.digest_rows])
    return _fill(text, "| kind | encoding |", [row for kind in kinds for row in kind.encoding_rows])


def describe_version(version: int) -> str:
    """Return how values were digested by a version of the recipe and not by the one after it; empty where nothing says so."""
    from audit.values import KINDS
    from audit.values.hashing import RECIPE_CHANGES

    new = [kind for kind in KINDS.values() if kind.since == version + 1]
    texts = [
        RECIPE_CHANGES.get(version + 1),
        *(f"values of the kind `{kind.name}` were {kind.kind_before}" for kind in new),
    ]
    return "; ".join(text for text in texts if text)


def _fill(text: str, heading: str, rows: Iterable[tuple[str, ...]]) -> str:
    """Replace the rows of the table that begins with a heading."""
    made = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    table = rf"^({re.escape(heading)}.*\n\|[- |]+\n)(?:\|.*\n)*"
    return re.sub(table, lambda found: found[1] + made, text, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
