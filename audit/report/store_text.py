"""What a terminal shows of a store as a whole."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from audit.report.clean_text import clean
from audit.report.html.charts import size
from audit.store.maintain.stats import StoreStats


def stats_table(stats: StoreStats) -> RenderableType:
    """Show runs, parts, rows and bytes, the largest table first."""
    statuses = ", ".join(f"{count} {status}" for status, count in stats.statuses.items())
    head = Text(
        f"{clean(stats.location)}: {stats.runs} run(s) ({statuses or 'none'}), {stats.parts} parts, {size(stats.bytes)}"
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("table", "parts", "rows", "size"):
        table.add_column(column, justify="left" if column == "table" else "right")
    for row in stats.tables:
        table.add_row(row.table, f"{row.parts:,}", f"{row.rows:,}", size(row.bytes))
    return Group(head, table)
