"""`audit replay`: make recorded visits again, and compare every stage's digest."""

from __future__ import annotations

import os

import click

from audit.cli.bar import ProgressBar
from audit.cli.options import common, console, json_option, trust_option, verdict


@click.command()
@click.argument("what", nargs=-1, metavar="[RUN] [INDEX…]")
@click.option("--all", "everything", is_flag=True, help="Every visit of the run. [default without INDEX and --sample]")
@click.option(
    "--sample", type=click.IntRange(1), metavar="N", help="N visits, spread over the run; the same each time."
)
@click.option("--epoch", type=click.IntRange(0), help="Only this epoch.")
@click.option("--stage", metavar="N|NAME", help="Compare only this stage: its number, or its name, such as Resize.")
@click.option(
    "--dataset",
    metavar="DATA",
    help="The dataset, where it has moved; FILE.py:NAME for a loop of its own that names no builder.",
)
@click.option(
    "--model",
    "model",
    is_flag=False,
    flag_value="",
    default=None,
    metavar="[CKPT]",
    help="Compute the logits again too; with a checkpoint, by that one.",
)
@click.option("--workers", type=click.IntRange(0), help="Worker processes. [default: the number of cores, at most 8]")
@click.option(
    "--export", "export_to", metavar="DIR", type=click.Path(file_okay=False), help="Write every stage's exact output."
)
@trust_option
@json_option
@common
def replay(
    what: tuple[str, ...],
    everything: bool,
    sample: int | None,
    epoch: int | None,
    stage: str | None,
    dataset: str | None,
    model: str | None,
    workers: int | None,
    export_to: str | None,
    trust: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """Re-derive stages from the source files, random augmentation included, and compare digests.

    Exit code 1 when something differs; the first stage that does is named, and why. The recorded pipeline runs only if
    this machine recorded it, or with --trust.
    """
    from audit.api import open as open_store
    from audit.lineage.replay.replay import check_choice

    run = what[0] if what and not what[0].isdecimal() else None
    indices = _numbers(what[1:] if run else what)
    if model and model.isdecimal() and not os.path.exists(model):
        raise click.UsageError(f"--model took {model!r} for a checkpoint: put indices before --model.")
    check_choice(everything, indices, sample)
    with open_store(store) as opened, ProgressBar("replaying") as bar:
        result = opened.replay(
            run,
            indices=indices,
            sample=sample,
            epoch=epoch,
            stage=stage,
            dataset=dataset or None,
            model=(model or True) if model is not None else False,
            export=export_to,
            workers=workers,
            trust=trust,
            progress=bar.show,
        )
    code = verdict(passed=result.passed)
    if as_json:
        from audit import plainjson

        click.echo(plainjson.dumps(result.as_json(), indent=1))
    else:
        from audit.report.replay_text import replay_summary

        console().print(replay_summary(result))
    return code


def _numbers(given: tuple[str, ...]) -> list[int]:
    for text in given:
        if not text.isdecimal():
            raise click.UsageError(f"{text!r} is not an index; expected [RUN] [INDEX…].")
    return [int(text) for text in given]
