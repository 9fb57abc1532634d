"""`audit select`: write chosen samples as a manifest that --dataset takes, or as a folder of links."""

from __future__ import annotations

import click

from audit.cli.options import add_common_options


@click.command()
@click.argument("run", required=False)
@click.option("--where", metavar="SQL", help='The samples that meet this condition, such as "NOT correct".')
@click.option("--tag", metavar="TEXT", help="Only samples with this tag.")
@click.option(
    "-o",
    "--output",
    metavar="PLACE",
    required=True,
    help="FILE.csv, FILE.jsonl, or a new folder for links to the files.",
)
@add_common_options
def select(run: str | None, where: str | None, tag: str | None, output: str, store: str | None) -> None:
    """Write selected samples of a run as a list, or as a folder of links. Your files are not changed.

    \b
    audit select latest --where "NOT correct AND confidence > 0.9" -o review.csv
    audit select latest --tag mislabelled -o mislabelled/
    audit run --dataset review.csv --model checkpoint.pt
    """
    from audit.api import open as open_store

    with open_store(store) as opened:
        count = opened.select(output, run, where=where, tag=tag)
    click.echo(f"Wrote {count} samples to {output}", err=True)
