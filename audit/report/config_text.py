"""What a terminal shows of the configuration."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from audit.config import Default
from audit.report.clean_text import clean


def config_table(defaults: Sequence[Default]) -> Table:
    """Show each setting with its value and its origin."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("setting", "value", "from"):
        table.add_column(column)
    for default in defaults:
        table.add_row(default.name, Text(clean(default.value)), Text(clean(default.origin)))
    return table
