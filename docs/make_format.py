"""Writes the tables of docs/FORMAT.md from the row classes (audit/tables.py), so that the two cannot disagree.

python docs/make_format.py

The text between the tables is written by hand and kept.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

PAGE = Path(__file__).parent / "FORMAT.md"
#: New tables are put before this section.
_AFTER_TABLES = "## Rules between tables\n"


def reference() -> str:
    """Return the page with every table as the code has it."""
    from audit.records import Run
    from audit.tables import TABLES

    text = PAGE.read_text(encoding="utf-8")
    for name, row in {"runs": Run, **TABLES}.items():
        made = section(name, row)
        # The heading, the paragraph below it, and the table.
        text, found = re.subn(
            rf"^### {name}\n\n(?:(?!\||#).*\n)*(?:\|.*\n)*", lambda _, made=made: made, text, flags=re.MULTILINE
        )
        if not found:
            text = text.replace(_AFTER_TABLES, f"{made}\n{_AFTER_TABLES}")
    return text


def section(name: str, row: type) -> str:
    """Return the heading, description and columns of one table as Markdown."""
    from audit.columns import columns_of

    lines = [f"### {name}", "", (inspect.getdoc(row) or "").replace("\n\n", "\n"), ""]
    lines += ["| column | type | meaning | NULL |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {column} | {facts.sql_type} | {facts.meaning} | {facts.null or 'never'} |"
        for column, facts in columns_of(row).items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
