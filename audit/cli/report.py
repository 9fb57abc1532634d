"""`audit report`: one run as one HTML file."""

from __future__ import annotations

import click

from audit.cli.options import add_common_options


@click.command()
@click.argument("run", required=False)
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), default="report.html", show_default=True
)
@click.option("--baseline", metavar="RUN", help="A run to compare with: regressions, fixes, first divergent stage.")
@click.option(
    "--mistakes",
    type=click.IntRange(0),
    help="Show this many of the worst mistakes with every stage. [default: as many as keep the file below 2 MB]",
)
@click.option(
    "--viewer",
    is_flag=True,
    help="A click on a picture shows its values: zoom, channels, two stages against each other. The file then has a script.",
)
@add_common_options
def report(
    run: str | None, output: str, baseline: str | None, mistakes: int | None, viewer: bool, store: str | None
) -> None:
    """Write one self-contained HTML file about a run: it opens from disk, with no network and, without --viewer, no script."""
    from audit.api import open as open_store
    from audit.report.html.charts import size

    with open_store(store) as opened:
        written = opened.report(output, run, baseline=baseline, mistakes=mistakes, viewer=viewer)
    click.echo(f"Wrote {output} ({size(written)})", err=True)
