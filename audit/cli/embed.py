"""`audit embed`: make a map of a run's samples."""

from __future__ import annotations

import click

from audit.cli.options import add_common_options, json_option, trust_option


@click.command()
@click.argument("run", required=False)
@click.option(
    "--layer",
    metavar="NAME",
    default="logits",
    show_default=True,
    help="A layer of the model, such as avgpool; or logits, or pixels.",
)
@click.option(
    "--method",
    type=click.Choice(["pca", "umap", "tsne"]),
    default="pca",
    show_default=True,
    help="How vectors are reduced to two dimensions. umap and tsne need the extra audit-lineage[embed].",
)
@click.option(
    "--epochs",
    type=click.Choice(["last", "all"]),
    default="last",
    show_default=True,
    help="Which epochs of a training the map has. With all, a sample has a point in each, and the map can be coloured by epoch.",
)
@trust_option
@json_option
@add_common_options
def embed(run: str | None, layer: str, method: str, epochs: str, trust: bool, as_json: bool, store: str | None) -> None:
    """Compute a map of a run's samples, and which samples are similar. `audit ui` shows both.

    The coordinates and vectors are rows of the table `embeddings`. The values of a layer that were
    recorded (`keep="full"`) are used; otherwise they are computed again from the source files.

    \b
    audit embed latest --layer avgpool
    audit embed latest --layer pixels
    audit embed training --epochs all
    """
    from dataclasses import asdict
    from typing import cast

    from audit import plainjson
    from audit.api import open as open_store
    from audit.cli.bar import ProgressBar
    from audit.lineage.embed import Epochs, Method

    with open_store(store) as opened, ProgressBar("embedding") as bar:
        done = opened.embed(
            run,
            layer=layer,
            method=cast(Method, method),
            epochs=cast(Epochs, epochs),
            trust=trust,
            progress=bar.show,
        )
    if as_json:
        click.echo(plainjson.dumps(asdict(done)))
    else:
        click.echo(f"Placed {done.samples:,} samples of {done.run_id} by {done.layer} ({done.method})", err=True)
