"""Writes the tables of docs/FORMAT.md from the row classes (audit/tables.py), and the columns of its views from an empty store.

python docs/make_format.py

The text between the tables is written by hand and kept.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from audit import Store

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
    return _with_columns_of_views(text)


def _with_columns_of_views(text: str) -> str:
    """Return the page with the columns of each view and macro that its table names; `as …` is kept."""
    import audit
    from audit.store.write.writer import RunWriter

    before, heading, after = text.partition("\n| view | columns |\n| --- | --- |\n")
    table, end, rest = after.partition("\n\n")
    with TemporaryDirectory() as folder:
        RunWriter.create(folder).abandon()
        with audit.open(folder) as store:
            made = [_view_row(store, *line.strip("| ").split(" | ")) for line in table.splitlines()]
    return before + heading + "\n".join(made) + end + rest


def _view_row(store: Store, view: str, columns: str) -> str:
    if not columns.startswith("as "):
        columns = ", ".join(store.sql(f"FROM {view} LIMIT 0").columns)
    return f"| {view} | {columns} |"


def section(name: str, row: type) -> str:
    """Return the heading, description and columns of one table as Markdown."""
    from audit.columns import columns_of
    from audit.values import KINDS

    kinds = ", ".join(f"`{kind}`" for kind in KINDS)
    lines = [f"### {name}", "", (inspect.getdoc(row) or "").replace("\n\n", "\n"), ""]
    lines += ["| column | type | meaning | NULL |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {column} | {facts.sql_type} | {facts.meaning.replace('{kinds}', kinds)} | {facts.null or 'never'} |"
        for column, facts in columns_of(row).items()
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
