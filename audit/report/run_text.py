"""What a terminal shows at the end of `audit run`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from audit.lineage.failures import FailureGroup
from audit.records import Run
from audit.report.text import clean

_MOST_ERRORS = 3


def run_summary(run: Run, location: str, stages: list[str], failures: Sequence[FailureGroup] = ()) -> RenderableType:
    """Show what a run came to, why samples failed, and what to do next."""
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("run", "dim"), Text.assemble((run.run_id, "bold"), f"  {clean(run.name)}" if run.name else ""))
    colour = {"complete": "green", "running": "yellow"}.get(run.status, "bold red")
    table.add_row(Text("status", "dim"), Text.assemble((run.status, colour), f" in {run.seconds or 0:.1f} s"))
    failed = Text(f", {run.failed:,} failed", "bold red") if run.failed else Text("")
    table.add_row(Text("samples", "dim"), Text.assemble(f"{run.samples:,}", failed))
    if run.accuracy is not None:
        table.add_row(
            Text("accuracy", "dim"),
            Text.assemble((f"{run.accuracy:.2%}", "bold"), f"  ({run.wrong:,} of {run.graded:,} wrong)"),
        )
    if stages:
        table.add_row(Text("stages", "dim"), Text(clean(" → ".join(stages))))
    table.add_row(Text("capture", "dim"), Text(clean(run.capture or "")))
    table.add_row(Text("store", "dim"), Text(clean(location)))
    _add_failures(table, run, location, failures)
    for warning in run.warnings:
        table.add_row(Text("note", "yellow"), Text(clean(warning)))
    return table


def _add_failures(table: Table, run: Run, location: str, failures: Sequence[FailureGroup]) -> None:
    """Add the commonest errors with their counts, how to see all of them, and what to do."""
    for number, group in enumerate(failures[:_MOST_ERRORS]):
        where = f" at {clean(group.stage)}" if group.stage else ""
        text = Text.assemble((f"{group.count:,} ×", "bold red"), f"{where}  {shorten(group.error or '')}")
        text.append(f"\nfirst: sample {group.index}, {clean(group.source)}", "dim")
        table.add_row(Text("" if number else "errors", "dim"), text)
    if len(failures) > _MOST_ERRORS:
        table.add_row("", Text(f"and {len(failures) - _MOST_ERRORS} more kinds of error", "dim"))
    if failures:
        place = shlex.quote(location)
        table.add_row(Text("see", "dim"), Text(f"audit sql 'FROM failures' --run {run.run_id} --store {place}"))
    if failures and run.failed == run.samples:
        table.add_row(Text("do", "dim"), Text(_advice(failures)))


def _advice(failures: Sequence[FailureGroup]) -> str:
    stages = {group.stage for group in failures}
    if stages == {"load"}:
        return "No sample could be read. Check what --dataset names, then record again."
    where = f"at {clean(*stages)}" if len(stages) == 1 else f"at {len(stages)} stages"
    return f"Every sample failed {where}. Fix the pipeline, or pass another --pipeline; try it with --limit 1 --strict."


def shorten(text: str, most: int = 200) -> str:
    """Return one printable line of at most so many characters."""
    line = clean(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"
