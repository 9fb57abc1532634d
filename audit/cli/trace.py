"""`audit trace`: one prediction back to its source file."""

from __future__ import annotations

import sys

import click

from audit.cli.options import add_common_options, console, json_option, trust_option
from audit.records import Run


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="[RUN] INDEX|SOURCE")
@click.option("--epoch", type=click.IntRange(0), help="Which epoch. [default: the last]")
@click.option("--visit", type=click.IntRange(0), help="Which visit within the epoch. [default: the last]")
@click.option(
    "--export",
    "export_to",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Write every stage's output as a picture and as an exact file.",
)
@click.option(
    "--pictures/--no-pictures", default=None, help="Show small pictures of the stages. [default: on a colour terminal]"
)
@trust_option
@json_option
@add_common_options
def trace(
    what: tuple[str, ...],
    epoch: int | None,
    visit: int | None,
    export_to: str | None,
    pictures: bool | None,
    trust: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Show the source, every stage, logits and prediction of one sample as a tree.

    INDEX is a number; any other text is a SOURCE, the path of a file below the dataset's root. --export recomputes what was
    not stored, with code that this machine recorded, or with --trust.
    """
    if len(what) > 2:
        raise click.UsageError(f"Expected [RUN] INDEX|SOURCE, got {len(what)} arguments.")
    run, sample = (what[0], what[1]) if len(what) == 2 else (None, what[0])
    from audit.api import open as open_store

    with open_store(store) as opened:
        number = int(sample) if sample.removeprefix("-").isdecimal() else None
        _require_sample(opened.runs(), run, sample)
        source = None if number is not None else sample
        found = opened.trace(run, index=number, source=source, epoch=epoch, visit=visit, trust=trust)
        written = found.export(export_to) if export_to else []
        if as_json:
            from audit import plainjson

            click.echo(plainjson.dumps(found.as_json(), indent=1))
        else:
            from audit.report.trace_text import trace_tree

            screen = console()
            show = (
                pictures
                if pictures is not None
                else not screen.no_color and _shows_pictures(screen.color_system, screen.encoding)
            )
            screen.print(trace_tree(found, pictures=show))
    if written:
        click.echo(f"Wrote {len(written)} files to {export_to}", err=True)


def _require_sample(runs: list[Run], run: str | None, sample: str) -> None:
    """Raise UsageError where the argument for the sample is the name of a run: it was left out, or comes first."""
    names = {name for recorded in runs for name in (recorded.name, recorded.run_id) if name}
    if sample not in names or run in names:
        return
    if run is None:
        raise click.UsageError(f"{sample} is a run. Name a sample of it too: audit trace {sample} INDEX")
    raise click.UsageError(f"{sample} is a run, and comes before the sample: audit trace {sample} {run}")


def _shows_pictures(colours: str | None, encoding: str) -> bool:
    return sys.stdout.isatty() and colours in ("truecolor", "256") and encoding.lower().startswith("utf")
