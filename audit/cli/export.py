"""`audit export`: write a run in another tool's format."""

from __future__ import annotations

import click

from audit.cli.options import add_common_options, json_option


@click.command()
@click.argument("run", required=False)
@click.option(
    "--to",
    metavar="FORM",
    required=True,
    help="mlflow, tensorboard, wandb, fiftyone, label-studio, cvat, dvc, openlineage, parquet, csv, or a format that a plugin adds.",
)
@click.option(
    "-o", "--output", metavar="DIR", type=click.Path(file_okay=False), required=True, help="The folder to write to."
)
@click.option(
    "--where",
    metavar="SQL",
    help='Only samples that meet this condition, such as "NOT correct" (fiftyone, label-studio, cvat).',
)
@click.option("--tag", metavar="TEXT", help="Only samples with this tag (fiftyone, label-studio, cvat).")
@json_option
@add_common_options
def export(
    run: str | None, to: str, output: str, where: str | None, tag: str | None, as_json: bool, store: str | None
) -> None:
    """Write a run, or chosen samples of it, for another tool.

    \b
    audit export latest --to tensorboard -o runs
    audit export latest --to label-studio --tag mislabelled -o review
    audit export latest --to cvat --where "NOT correct" -o review
    audit export latest --to dvc -o metrics
    """
    from dataclasses import asdict

    from audit import plainjson
    from audit.api import open as open_store

    with open_store(store) as opened:
        done = opened.export(to, output, run, where=where, tag=tag)
    if as_json:
        click.echo(plainjson.dumps(asdict(done)))
    else:
        count = len(done.files)
        click.echo(f"Wrote run {done.run_id} for {to}: {count} file{'' if count == 1 else 's'} in {output}", err=True)
        if done.left_out:
            click.echo(
                f"Left out {done.left_out} sample{'' if done.left_out == 1 else 's'}: not a picture file, or with boxes that "
                "cannot be placed in the source.",
                err=True,
            )
