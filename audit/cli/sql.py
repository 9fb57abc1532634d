"""`audit sql`: run a query."""

from __future__ import annotations

import shlex
import sys

import click

from audit.cli.options import add_common_options
from audit.display import to_visible


@click.command()
@click.argument("query", nargs=-1, metavar="[QUERY]")
@click.option("--run", "runs", metavar="RUN", multiple=True, help="Only this run (repeatable). [default: every run]")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json", "jsonl", "markdown"]),
    default="table",
    show_default=True,
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write to a file; its ending (.parquet, .csv, .json, .jsonl, .md) sets the format.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--timeout", metavar="SECONDS", type=click.FloatRange(0, min_open=True), help="Stop a query that takes longer."
)
@click.option(
    "--memory-limit", metavar="BYTES", help="The most memory of a query, such as 4GB. [default: half of the machine's]"
)
@add_common_options
def sql(
    query: tuple[str, ...],
    runs: tuple[str, ...],
    form: str,
    output: str | None,
    as_json: bool,
    timeout: float | None,
    memory_limit: str | None,
    store: str | None,
) -> None:
    """Run read-only SQL over every table and view. Without a query, open a prompt on a terminal.

    \b
    audit sql "FROM wrong_predictions WHERE label = 2"
    audit sql "SELECT label_name, accuracy FROM per_class" --run latest
    """
    if len(query) > 1:
        raise click.UsageError(
            f"The query must be one argument. Put it in quotes: audit sql {shlex.quote(' '.join(query))}"
        )
    from audit.api import open as open_store
    from audit.cli.interrupt import run_interruptible
    from audit.cli.query_limits import limit_process
    from audit.report.results import write_file, write_stream

    with open_store(store) as opened:
        for error in opened.damaged:
            click.secho(f"audit: {to_visible(error)}", fg="red", err=True)
        if not query and sys.stdin.isatty():
            from audit.cli.prompt import prompt

            prompt(opened, runs or None, timeout, memory_limit)
            return
        text = query[0] if query else sys.stdin.read()
        if not text.strip():
            raise click.UsageError('No query was given. Ask for instance: audit sql "FROM wrong_predictions"')
        chosen = "json" if as_json else form

        def write() -> None:
            if output:
                click.echo(f"Wrote {write_file(answer, output, chosen):,} rows to {output}", err=True)
            else:
                write_stream(answer, sys.stdout, chosen)

        with limit_process(memory_limit, timeout):
            answer = opened.sql(text, run=runs or None, timeout=timeout, memory_limit=memory_limit)
            run_interruptible(answer, write)
