"""`audit diff`: which stage made two runs differ, and which predictions flipped."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from audit.cli.options import add_common_options, console, json_option, trust_option, verdict

if TYPE_CHECKING:
    from audit.lineage.diff.diff import Diff

_MOST_SHOWN = 10
_MOST_IN_TABLE = 20
_FROM_0 = click.IntRange(0)


@click.command()
@click.argument("a", required=False)
@click.argument("b", required=False)
@click.option("--pipelines", nargs=2, metavar="A.py B.py", help="Record --dataset through both, and compare them.")
@click.option("--dataset", metavar="DATA", help="With --pipelines: what to record, as for `audit run`.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="With --pipelines: only the first N samples.")
@click.option("--workers", type=click.IntRange(0), help="With --pipelines: worker processes.")
@click.option("--seed", type=int, default=0, show_default=True, help="With --pipelines: each sample is seeded from it.")
@click.option(
    "--max-regressions",
    type=_FROM_0,
    metavar="N",
    help="Exit with 1 if more than N samples are newly wrong or newly fail.",
)
@click.option(
    "--max-divergent", type=_FROM_0, metavar="N", help="Exit with 1 if more than N samples differ at any stage."
)
@click.option(
    "--rows", type=_FROM_0, metavar="N", help="List at most N rows. [default: 10; 20 in Markdown; 10,000 in JSON]"
)
@click.option(
    "--derive/--no-derive", default=True, help="Recompute outputs that were not stored, to measure differences."
)
@trust_option
@click.option("--markdown", is_flag=True, help="Print Markdown, for a comment on a pull request.")
@json_option
@add_common_options
def diff(
    a: str | None,
    b: str | None,
    pipelines: tuple[str, str] | None,
    store: str | None,
    max_regressions: int | None,
    max_divergent: int | None,
    **options: Any,
) -> int:
    """Compare two runs: data, first divergent stage, flipped predictions and their cause.

    A and B are runs; the defaults are latest~1 and latest. In a run with several epochs, the last is compared. With
    no sample in common nothing is compared, and the exit code is 1. Outputs are recomputed only by unchanged code
    that this machine recorded, or with --trust.

    \b
    audit diff baseline latest --max-regressions 0
    audit diff --pipelines train.py serve.py --dataset images/
    """
    _check_usage(a, pipelines, options)
    rows = {} if options["rows"] is None else {"rows": options["rows"]}
    wanted = rows | {"derive": options["derive"], "trust": options["trust"]}
    found = _pipelines(pipelines, store, options, wanted) if pipelines else _runs(a, b, store, wanted)
    broken = found.exceeded_limits(max_regressions=max_regressions, max_divergent=max_divergent)
    code = verdict(passed=not broken)
    for sentence in broken:
        click.secho(f"audit: {sentence}", fg="red", err=True)
    _show(found, options)
    return code


def _check_usage(a: str | None, pipelines: tuple[str, str] | None, options: dict[str, Any]) -> None:
    if options["as_json"] and options["markdown"]:
        raise click.UsageError("Pass --json or --markdown, not both.")
    if pipelines and a:
        raise click.UsageError("Pass two runs, or --pipelines with --dataset, not both.")
    if pipelines and not options["dataset"]:
        raise click.UsageError("--pipelines needs --dataset, the data to record through both.")
    if not pipelines:
        for name in ("dataset", "limit", "workers"):
            if options[name] is not None:
                raise click.UsageError(f"--{name} can be used only with --pipelines.")


def _runs(a: str | None, b: str | None, store: str | None, wanted: dict[str, Any]) -> Diff:
    from audit.api import open as open_store

    with open_store(store) as opened, console(stderr=True).status("comparing") as status:
        if a is not None and b is None and opened.run(a).run_id == opened.run(None).run_id:
            raise click.UsageError(
                f"{a} is the newest run, so it would be compared with itself. Name both runs: audit diff latest~1 {a}"
            )
        return opened.diff(a, b, progress=lambda now: status.update(now.doing), **wanted)


def _pipelines(pipelines: tuple[str, str], store: str | None, options: dict[str, Any], wanted: dict[str, Any]) -> Diff:
    """Record both runs into the given store, or into a temporary one."""
    from rich.progress import Progress

    from audit.api import diff_pipelines

    with Progress(console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        tasks: dict[str, Any] = {}

        def show(progress: Any) -> None:
            pipeline = progress.doing
            if pipeline not in tasks:
                tasks[pipeline] = bar.add_task(pipeline.replace("[", "\\["), total=progress.total)
            bar.update(tasks[pipeline], completed=progress.done, total=progress.total)

        recording = {name: options[name] for name in ("limit", "workers", "seed")}
        a, b = pipelines
        return diff_pipelines(options["dataset"], a, b, store=store, progress=show, **recording, **wanted)


def _show(found: Diff, options: dict[str, Any]) -> None:
    if options["as_json"]:
        from audit import plainjson

        click.echo(plainjson.dumps(found.as_json(), indent=1))
    elif options["markdown"]:
        from audit.report.diff.markdown import diff_markdown

        click.echo(diff_markdown(found, _MOST_IN_TABLE if options["rows"] is None else options["rows"]), nl=False)
    else:
        from audit.report.diff.text import diff_text

        console().print(diff_text(found, _MOST_SHOWN if options["rows"] is None else options["rows"]))
