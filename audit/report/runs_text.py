"""The runs of a store as a table, in as many columns as a terminal has room for."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from audit.records import Run
from audit.report.clean_text import clean


def _accuracy_text(run: Run) -> str:
    """Return a run's accuracy, with the split that it is of; nothing where nothing was graded."""
    if run.accuracy is None:
        return ""
    return f"{run.accuracy:.2%}" + (f" of {clean(run.accuracy_split)}" if run.accuracy_split is not None else "")


def runs_table(runs: list[Run], width: int | None = None) -> Table:
    """Return every run, newest last, in as many columns as fit; the id is always whole, because it is typed again."""
    columns = {
        "run": [Text(run.run_id) for run in runs],
        "name": [Text(clean(run.name or "")) for run in runs],
        "status": [Text(run.status, {"complete": "green", "running": "yellow"}.get(run.status, "red")) for run in runs],
        "samples": [Text(f"{run.samples:,}") for run in runs],
        "failed": [Text(f"{run.failed:,}") for run in runs],
        "accuracy": [Text(_accuracy_text(run)) for run in runs],
        "capture": [Text((run.capture or "").split(" ")[0]) for run in runs],
        "dataset": [Text(clean(run.dataset or "")) for run in runs],
        "begun": [Text(run.started_at[:19].replace("T", " ")) for run in runs],
    }
    table = Table(box=None, pad_edge=False, header_style="dim")
    shown = _columns_that_fit({name: max([len(name), *map(len, cells)]) for name, cells in columns.items()}, width)
    for name in shown:
        table.add_column(
            name, justify="right" if name in ("samples", "failed", "accuracy") else "left", no_wrap=name == "run"
        )
    for row in zip(*(columns[name] for name in shown), strict=True):
        table.add_row(*row)
    return table


def _columns_that_fit(widths: dict[str, int], width: int | None) -> list[str]:
    """Return the names of the columns that fit into a width, the most useful ones first to be kept."""
    chosen: set[str] = set()
    left = width
    for name in ("run", "name", "accuracy", "status", "samples", "failed", "begun", "dataset", "capture"):
        # A name or a path is shortened by the table, so a part of its width is enough.
        needed = min(widths[name], 12) if name in ("name", "dataset") else widths[name]
        if left is not None and chosen and needed + 2 > left:
            continue
        chosen.add(name)
        left = None if left is None else left - needed - 2
    return [name for name in widths if name in chosen]
