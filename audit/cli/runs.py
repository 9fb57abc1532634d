"""`audit runs`: list the runs of a store."""

from __future__ import annotations

import click

from audit.cli.options import common, console, json_option


@click.command()
@json_option
@common
def runs(store: str | None, as_json: bool) -> None:
    """List the runs, newest last."""
    from audit.api import open as open_store

    with open_store(store) as opened:
        listed = opened.runs()
        damaged = opened.damaged
    for error in damaged:
        click.secho(f"audit: {error}", fg="red", err=True)
    if as_json:
        from audit import plainjson

        click.echo(plainjson.dumps([run.as_json() for run in listed], indent=1))
        return
    from audit.report.text import runs_table

    if listed:
        console().print(runs_table(listed))
    else:
        click.echo("The store holds no run yet. Record one with: audit run --dataset DIR", err=True)
