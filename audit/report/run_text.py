"""What a terminal shows at the end of `audit run`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from audit.config import store_location
from audit.lineage.failures import FailureGroup
from audit.lineage.mistakes import Mistake
from audit.metrics.average_precision import AveragePrecision
from audit.provenance import note_missing_extension
from audit.records import Run
from audit.report.clean_text import clean

_MOST_ERRORS = 3
_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


def run_summary(
    run: Run,
    location: str,
    stages: list[str],
    failures: Sequence[FailureGroup] = (),
    mistakes: Sequence[Mistake] = (),
    precision: AveragePrecision | None = None,
    points: AveragePrecision | None = None,
    shown: Collection[str] = (),
) -> RenderableType:
    """Show the result of a run, why samples failed, and the next commands; notes that were shown already are left out."""
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("run", "dim"), Text.assemble((run.run_id, "bold"), f"  {clean(run.name)}" if run.name else ""))
    colour = {"complete": "green", "running": "yellow"}.get(run.status, "bold red")
    table.add_row(Text("status", "dim"), Text.assemble((run.status, colour), f" in {run.seconds or 0:.1f} s"))
    failed = Text(f", {run.failed:,} failed", "bold red") if run.failed else Text("")
    table.add_row(Text("samples", "dim"), Text.assemble(f"{run.samples:,}", failed))
    if run.accuracy is not None:
        table.add_row(
            Text("accuracy", "dim"),
            Text.assemble((f"{run.accuracy:.2%}", "bold"), f"  ({_wrong_text(run)})"),
        )
    if precision is not None and precision.all is not None:
        at_50 = f"  ({precision.at_50:.1%} at an overlap of 0.5)" if precision.at_50 is not None else ""
        table.add_row(Text("mean average precision", "dim"), Text.assemble((f"{precision.all:.1%}", "bold"), at_50))
    if points is not None and points.all is not None:
        at_50 = f"  ({points.at_50:.1%} at a similarity of 0.5)" if points.at_50 is not None else ""
        table.add_row(Text("keypoint precision", "dim"), Text.assemble((f"{points.all:.1%}", "bold"), at_50))
    if stages:
        table.add_row(Text("stages", "dim"), Text(clean(" → ".join(stages))))
    table.add_row(Text("capture", "dim"), Text(clean(run.capture or "")))
    table.add_row(Text("store", "dim"), Text(clean(location)))
    _add_failures(table, run, failures)
    _add_mistakes(table, mistakes)
    _add_next(table, run, location, mistakes)
    for warning in (*run.warnings, note_missing_extension(run.versions)):
        if warning is not None and warning not in shown:
            table.add_row(Text("note", "yellow"), Text(clean(warning)))
    return table


def _add_failures(table: Table, run: Run, failures: Sequence[FailureGroup]) -> None:
    """Add the commonest errors with their counts, and advice if every sample failed."""
    for number, group in enumerate(failures[:_MOST_ERRORS]):
        where = f" at {clean(group.stage)}" if group.stage else ""
        text = Text.assemble((f"{group.count:,} ×", "bold red"), f"{where}  {shorten(group.error or '')}")
        mode = f", a picture of mode {clean(group.mode)}" if group.mode else ""
        text.append(f"\nfirst: sample {group.index}, {clean(group.source)}{mode}", "dim")
        table.add_row(Text("" if number else "errors", "dim"), text)
    if len(failures) > _MOST_ERRORS:
        more = len(failures) - _MOST_ERRORS
        table.add_row("", Text(f"and {more} more kind{'' if more == 1 else 's'} of error", "dim"))
    if failures and run.failed == run.samples:
        table.add_row(Text("do", "dim"), Text(_advice(run, failures)))


def _wrong_text(run: Run) -> str:
    """Return what the accuracy counts: of several epochs the last complete one, while `wrong` counts all."""
    of = f"of the split {clean(run.accuracy_split)}" if run.accuracy_split is not None else ""
    if run.last_epoch:
        return f"{of} in the last complete epoch".strip()
    return of or f"{run.wrong:,} of {run.graded:,} wrong"


def _add_mistakes(table: Table, mistakes: Sequence[Mistake]) -> None:
    """Add the wrong predictions with the highest confidence, with their files."""
    for number, wrong in enumerate(mistakes):
        said = f"{clean(wrong.predicted)} ({wrong.confidence:.1%}) instead of {clean(wrong.label)}"
        text = Text.assemble((f"{wrong.index}", "bold"), f"  {clean(wrong.source)}  {said}")
        table.add_row(Text("" if number else "surest mistakes", "dim"), text)


def _add_next(table: Table, run: Run, location: str, mistakes: Sequence[Mistake]) -> None:
    """Add the commands to type next, as they can be typed here."""
    known = os.path.abspath(store_location()) == os.path.abspath(location)
    place = "" if known else f" --store {shlex.quote(location)}"
    commands = []
    if run.failed:
        commands.append(f"audit sql 'FROM failures' --run {run.run_id}{place}")
    if mistakes:
        reference = f"{run.run_id} " if run.status != "complete" else ""
        commands.append(f"audit trace {reference}{mistakes[0].index}{place}")
    if run.task == "detection":
        commands.append(f"audit sql 'FROM missed_objects' --run {run.run_id}{place}")
    if run.task == "segmentation":
        commands.append(f"audit sql 'FROM worst_masks' --run {run.run_id}{place}")
    if run.samples > run.failed:
        commands.append(f"audit ui{place}")
    for number, command in enumerate(commands):
        table.add_row(Text("" if number else "next", "dim"), Text(command))


def _advice(run: Run, failures: Sequence[FailureGroup]) -> str:
    stages = {group.stage for group in failures}
    if stages == {"load"} and str(run.dataset).endswith(_TABLES):
        return f"No sample could be read. Paths in {clean(run.dataset)} are relative to its folder. Correct them, then record again."
    if stages == {"load"}:
        return "No sample could be read. Check the value of --dataset, then record again."
    where = f"at {clean(*stages)}" if len(stages) == 1 else f"at {len(stages)} stages"
    if {group.kind for group in failures} == {"text"}:
        return (
            f"Every sample was loaded as text, and failed {where}. If you meant pictures, check the value of --dataset. "
            "For texts, pass a --pipeline that takes texts."
        )
    return f"Every sample failed {where}. Fix the pipeline, or pass another --pipeline; try it with --limit 1 --strict."


def shorten(text: str, most: int = 200) -> str:
    """Return one printable line of at most `most` characters."""
    line = clean(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"
