"""`audit replay`: repeat recorded visits, and compare every stage's digest."""

from __future__ import annotations

import os

import click

from audit.cli.bar import ProgressBar
from audit.cli.options import add_common_options, console, json_option, trust_option, verdict


@click.command()
@click.argument("what", nargs=-1, metavar="[RUN] [INDEX…]")
@click.option(
    "--all", "everything", is_flag=True, help="Replay every visit of the run. [default without INDEX and --sample]"
)
@click.option(
    "--sample",
    type=click.IntRange(1),
    metavar="N",
    help="Replay N visits, evenly spread over the run; always the same ones.",
)
@click.option("--epoch", type=click.IntRange(0), help="Replay only this epoch.")
@click.option("--stage", metavar="N|NAME", help="Compare only this stage: its number, or its name, such as Resize.")
@click.option(
    "--dataset",
    metavar="DATA",
    help="The dataset, if it has moved; FILE.py:NAME for your own loop without a builder.",
)
@click.option(
    "--model",
    "model",
    is_flag=False,
    flag_value="",
    default=None,
    metavar="[CKPT]",
    help="Also recompute the logits; with a value, by that checkpoint.",
)
@click.option("--workers", type=click.IntRange(0), help="Worker processes. [default: the number of cores, at most 8]")
@click.option(
    "--export", "export_to", metavar="DIR", type=click.Path(file_okay=False), help="Write every stage's exact output."
)
@trust_option
@json_option
@add_common_options
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
    """Compute the stages again from the source files, random augmentation included, and compare digests.

    Exit code 1 if something differs; the first stage that differs is printed with the reason. The recorded pipeline runs only if
    this machine recorded it, or with --trust.
    """
    from audit.api import open as open_store
    from audit.lineage.replay.replay import check_choice

    run = what[0] if what and not what[0].isdecimal() else None
    indices = _numbers(what[1:] if run else what)
    if model and model.isdecimal() and not os.path.exists(model):
        raise click.UsageError(f"--model interpreted {model!r} as a checkpoint. Put indices before --model.")
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
