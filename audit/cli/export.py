"""`audit export`: write a run in another tool's format."""

from __future__ import annotations

import click

from audit.cli.options import common, json_option


@click.command()
@click.argument("run", required=False)
@click.option(
    "--to",
    metavar="FORM",
    required=True,
    help="mlflow, tensorboard, wandb, fiftyone, openlineage, parquet, csv, or a format that a plugin adds.",
)
@click.option(
    "-o", "--output", metavar="DIR", type=click.Path(file_okay=False), required=True, help="The folder to write to."
)
@json_option
@common
def export(run: str | None, to: str, output: str, as_json: bool, store: str | None) -> None:
    """Write a run for another tool.

    \b
    audit export latest --to tensorboard -o runs
    audit export baseline --to fiftyone -o fiftyone
    """
    from dataclasses import asdict

    from audit import plainjson
    from audit.api import open as open_store

    with open_store(store) as opened:
        done = opened.export(to, output, run)
    if as_json:
        click.echo(plainjson.dumps(asdict(done)))
    else:
        count = len(done.files)
        click.echo(f"Wrote run {done.run_id} for {to}: {count} file{'' if count == 1 else 's'} in {output}", err=True)
