"""`audit baseline`: a run as a small file that can be committed, so that CI needs no old store."""

from __future__ import annotations

import click

from audit.cli.groups import CommandGroup
from audit.cli.options import add_common_options


@click.group(cls=CommandGroup)
def baseline() -> None:
    """Keep a run as a small file that later runs are compared with."""


@baseline.command()
@click.argument("run", required=False)
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), default="baseline.json", show_default=True
)
@add_common_options
def export(run: str | None, output: str, store: str | None) -> None:
    """Write a run's sources, labels, predictions, pipeline and statistics, for `audit check --baseline FILE`."""
    import os

    from audit.api import open as open_store

    with open_store(store) as opened:
        written = opened.baseline(output, run)
    click.echo(f"Wrote {written.name} to {output} ({os.path.getsize(output):,} bytes)", err=True)


@baseline.command()
@click.argument("run", required=False)
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), default="baseline.json", show_default=True
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and write nothing.")
@add_common_options
def update(run: str | None, output: str, dry_run: bool, store: str | None) -> None:
    """Replace a baseline file by a run, and print what changes as Markdown, for the pull request."""
    from audit.api import open as open_store
    from audit.report.findings.baseline_text import baseline_markdown

    with open_store(store) as opened:
        changes = opened.update_baseline(output, run, write=not dry_run)
    click.echo(baseline_markdown(changes), nl=False)
    click.echo(f"{output} was not changed." if dry_run else f"Wrote {output}", err=True)
