"""A progress bar on a terminal: the task, how much is done, the speed, and the time left."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from audit.cli.options import console
from audit.records import Progress

if TYPE_CHECKING:
    from rich.progress import Task


class ProgressBar:
    """Show the progress of one command on a terminal, and nothing elsewhere. Notes are always printed."""

    def __init__(self, doing: str) -> None:
        from rich.progress import BarColumn, ProgressColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.text import Text

        class FactsColumn(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(describe_task(task))

        self._progress = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            FactsColumn(),
            TextColumn("[red]{task.fields[failed]}"),
            console=console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task(doing, total=None, failed="")
        self._notes: set[str] = set()

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def show(self, progress: Progress) -> None:
        """Update the bar; print a note above it."""
        if progress.note is not None:
            click.secho(f"note: {progress.note}", fg="yellow", err=True)
            self._notes.add(progress.note)
            return
        failed = f"{progress.failed:,} failed" if progress.failed else ""
        doing = progress.doing or self._progress.tasks[0].description
        self._progress.update(
            self._task, description=doing, completed=progress.done, total=progress.total, failed=failed
        )

    def shown_notes(self) -> set[str]:
        """Return the notes that a reader of standard output has seen: those on the terminal that both streams share."""
        return self._notes if sys.stderr.isatty() and sys.stdout.isatty() else set()

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def describe_task(task: Task) -> str:
    """Return `1,200/10,000  310/s  0:28 left`; an empty text while the total is unknown."""
    if task.total is None:
        return ""
    facts = [f"{task.completed:,.0f}/{task.total:,.0f}"]
    if task.speed:
        facts.append(f"{task.speed:,.0f}/s" if task.speed >= 10 else f"{task.speed:.1f}/s")
    if task.speed and task.time_remaining is not None:
        minutes, seconds = divmod(round(task.time_remaining), 60)
        hours, minutes = divmod(minutes, 60)
        facts.append(f"{hours}:{minutes:02d}:{seconds:02d} left" if hours else f"{minutes}:{seconds:02d} left")
    return "  ".join(facts)
