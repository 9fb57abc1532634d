"""`audit runs`: list the runs of a store, rename them and tag them."""

from __future__ import annotations

import click

from audit.cli.groups import CommandGroup
from audit.cli.options import add_common_options, console, json_option, parse_tags
from audit.display import to_visible


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--where", metavar="SQL", help='Only runs that meet this condition, such as "accuracy > 0.9".')
@json_option
@add_common_options
@click.pass_context
def runs(ctx: click.Context, store: str | None, as_json: bool, where: str | None) -> None:
    """List the runs, newest last; rename or tag one.

    \b
    audit runs --where "status = 'complete' AND tags['team'] = 'vision'"
    audit runs tag baseline reviewed=yes
    audit runs rename latest candidate
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = store
        return
    from audit.api import open as open_store

    with open_store(store) as opened:
        listed = opened.runs(where=where)
        damaged = opened.damaged
    for error in damaged:
        click.secho(f"audit: {to_visible(error)}", fg="red", err=True)
    if as_json:
        from audit import plainjson

        click.echo(plainjson.dumps([run.as_json() for run in listed], indent=1))
        return
    from audit.report.runs_text import runs_table

    if listed:
        screen = console()
        screen.print(runs_table(listed, screen.width))
    elif where:
        click.echo(f"No run matches the condition: {where}", err=True)
    else:
        click.echo("The store holds no run yet. Record one with: audit run --dataset DIR", err=True)


@runs.command()
@click.argument("run")
@click.argument("tags", nargs=-1, metavar="KEY=VALUE…", callback=parse_tags)
@click.option("--remove", metavar="KEY", multiple=True, help="Remove this tag; repeatable.")
@add_common_options
@click.pass_obj
def tag(given: str | None, run: str, tags: dict[str, str], remove: tuple[str, ...], store: str | None) -> None:
    """Add tags to a run, or replace or remove them."""
    from audit.api import open as open_store

    if not tags and not remove:
        raise click.UsageError("Pass KEY=VALUE, or --remove KEY.")
    with open_store(store or given) as opened:
        changed = opened.tag(run, tags, remove=remove)
    shown = ", ".join(f"{key}={value}" for key, value in changed.tags.items()) or "none"
    click.echo(to_visible(f"Tags of {changed.run_id}: {shown}"), err=True)


@runs.command()
@click.argument("run")
@click.argument("name")
@add_common_options
@click.pass_obj
def rename(given: str | None, run: str, name: str, store: str | None) -> None:
    """Give a run another name."""
    from audit.api import open as open_store

    with open_store(store or given) as opened:
        changed = opened.rename(run, name)
    click.echo(to_visible(f"{changed.run_id} is now called {name}"), err=True)
