"""Writes the list of all kinds of dataset in docs/howto/own-dataset.md from their descriptions (audit/sources).

python docs/make_datasets.py

The rest of the page is written by hand and kept.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parent / "howto" / "own-dataset.md"
#: The list follows this line.
_BEFORE_LIST = "All kinds, in the order in which audit tries them:\n\n"


def reference() -> str:
    """Return the page with the list of the kinds that the code has."""
    from audit.sources import SOURCES

    made = "".join(f"- {kind.description}\n" for kind in SOURCES.values())
    text = PAGE.read_text(encoding="utf-8")
    return re.sub(rf"(?<={re.escape(_BEFORE_LIST)})(?:- .*\n)*", lambda _: made, text)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
