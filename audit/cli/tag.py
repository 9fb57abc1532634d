"""`audit tag`: tag samples, so that queries, the web app and exports can pick them."""

from __future__ import annotations

import click

from audit.cli.options import add_common_options


@click.command()
@click.argument("run")
@click.argument("tag")
@click.argument("indices", nargs=-1, type=int, metavar="[INDEX…]")
@click.option("--where", metavar="SQL", help='Tag the samples that meet this condition, such as "NOT correct".')
@click.option("--note", metavar="TEXT", help="A note that is kept with the tag.")
@click.option("--remove", is_flag=True, help="Remove the tag.")
@add_common_options
def tag(
    run: str, tag: str, indices: tuple[int, ...], where: str | None, note: str | None, remove: bool, store: str | None
) -> None:
    """Tag samples of a run. Tags are rows of the table `tags`.

    \b
    audit tag latest mislabelled 12 28 40 --note "really a dog"
    audit tag latest hard --where "loss > 2"
    audit sql "SELECT tag, count(*) FROM tags GROUP BY tag"
    """
    from audit.api import open as open_store

    if not indices and where is None:
        raise click.UsageError("Pass the INDEX of at least one sample, or --where SQL.")
    with open_store(store) as opened:
        changed = opened.tag_samples(tag, run, indices=indices, where=where, note=note, remove=remove)
    click.echo(f"{'Removed' if remove else 'Set'} the tag {tag!r} of {changed} samples", err=True)
