"""`audit config`: the default options that apply, and where each comes from."""

from __future__ import annotations

from dataclasses import asdict

import click

from audit.cli.options import console, debug_option, json_option


@click.command()
@json_option
@debug_option
def config(as_json: bool) -> None:
    """Show the default options that apply and where each comes from: the environment, audit.toml, or the user's file.

    \b
    [defaults]                 # in ./audit.toml, or ~/.config/audit/config.toml
    store = "lineage"
    [defaults.run]             # options of one command
    workers = 4
    """
    from audit.config import option_defaults, store_default, user_file

    found = [store_default(), *option_defaults()]
    if as_json:
        from audit import plainjson

        click.echo(plainjson.dumps([asdict(default) for default in found], indent=1))
        return
    from audit.report.config_text import config_table

    console().print(config_table(found))
    click.echo(f"The user's file is {user_file()}", err=True)
