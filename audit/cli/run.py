"""`audit run`: record a dataset through its pipeline, and through a model if given."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from audit.cli.bar import ProgressBar
from audit.cli.boundary import INTERRUPT_CODE
from audit.cli.model_outputs import OutputKind, parse_output, parse_target
from audit.cli.options import add_common_options, console, json_option, parse_tags
from audit.config import store_location
from audit.records import LEVELS, OUTPUT_TASKS, Run, Stage

if TYPE_CHECKING:
    from audit.checks.config import Configuration
    from audit.lineage.failures import FailureGroup
    from audit.metrics.average_precision import AveragePrecision

#: Options that may differ when a run is resumed; the others come from its recipe.
_WHEN_RESUMED = (
    "strict",
    "trust",
    "max_failures",
    "commit_every",
    "stall_timeout",
    "engine",
    "address",
    "actors",
    "gpus_per_actor",
)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class Size(click.ParamType[int]):
    """A number of bytes such as 500M or 2GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", str(value), re.IGNORECASE)
        if not match:
            self.fail(f"{value!r} is not a size; write for example 500M or 2GiB", param, ctx)
        return int(float(match[1]) * _UNITS[match[2].lower()])


@click.command()
@click.argument("data", required=False, metavar="[DATA]")
@click.option(
    "--dataset",
    metavar="DATA",
    help="The same as the argument DATA: a folder, a manifest, FILE.py, module:function, torchvision:NAME, hf:PATH "
    "(saved on this machine), coco:FILE.json, voc:FOLDER, yolo:data.yaml, masks:FOLDER, s3://bucket/folder, or another kind "
    "that docs/howto/own-dataset.md lists.",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="A checkpoint, TorchScript, .pt2, .onnx, safetensors, a Hugging Face folder, or module:function.",
)
@click.option("--pipeline", metavar="FILE.py[:NAME]", help="A module with `transform` or `dataset(root)`.")
@click.option(
    "--mode",
    type=click.Choice(["rgb", "keep"]),
    help="Pass pictures to --pipeline's transform as RGB, as ImageFolder does, or in their own mode. "
    "[default: the pipeline's `mode`, else rgb]",
)
@click.option(
    "--arch",
    metavar="NAME",
    help="The architecture of a state dict. [default: `model()` of --pipeline, else recognised from the weights]",
)
@click.option(
    "--trust",
    is_flag=True,
    help="Allow a model file that executes code as it is loaded; with --resume, code that the store names.",
)
@click.option("--name", help="A name for the run.")
@click.option(
    "--tag", "tags", metavar="KEY=VALUE", multiple=True, callback=parse_tags, help="A tag for the run; repeatable."
)
@click.option(
    "--capture",
    type=click.Choice(["auto", *LEVELS]),
    default="auto",
    show_default=True,
    help="How much of each stage's output is stored.",
)
@click.option(
    "--capture-budget",
    type=Size(),
    default="2GiB",
    show_default=True,
    help="The most bytes that `auto` may store for the run.",
)
@click.option("--capture-where", metavar="SQL", help="Store payloads only for predictions that meet this condition.")
@click.option(
    "--workers",
    type=click.IntRange(0),
    help="Worker processes of the local engine. [default: the number of cores, at most 8]",
)
@click.option(
    "--start-method",
    type=click.Choice(["fork", "spawn", "forkserver"]),
    help="How workers are started. [default: the system's]",
)
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True)
@click.option("--device", default="cpu", show_default=True, help="Where the model runs.")
@click.option(
    "--output",
    type=OutputKind(),
    metavar="KIND|NAME=KIND",
    multiple=True,
    callback=parse_output,
    help=f"What the model's output is: {', '.join(OUTPUT_TASKS)}. Of a model with several graded outputs, repeat it with the "
    "key or position of each: --output digit=logits --output angle=regression. [default: detected from the first output]",
)
@click.option(
    "--target",
    metavar="NAME=PLACE",
    multiple=True,
    callback=parse_target,
    help="Of several graded outputs: the key or position of the target of each in an item; repeatable. "
    "[default: the key of the same name]",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Record only the first N samples.")
@click.option("--seed", type=int, default=0, show_default=True, help="Each sample is seeded from (seed, epoch, index).")
@click.option("--strict", is_flag=True, help="Stop at the first sample that fails.")
@click.option(
    "--max-failures",
    metavar="N|P%",
    help="Exit with 1 if more samples fail: a number, or a share such as 2%. [default: if all fail]",
)
@click.option(
    "--commit-every",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    help="Commit at this interval. [default: after 4 s, then less and less often]",
)
@click.option(
    "--stall-timeout",
    type=click.FloatRange(0),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="Give up a sample that takes longer: end its worker and record a failed row. 0 waits forever.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Use workers on this machine, or a Ray cluster.",
)
@click.option(
    "--address",
    metavar="HOST:PORT",
    help="The Ray cluster; `auto` for the one on this machine. [default: start a new one]",
)
@click.option(
    "--actors",
    type=click.IntRange(1),
    metavar="N",
    help="The number of models in Ray's pool. [default: by GPUs or cores]",
)
@click.option(
    "--gpus-per-actor", type=click.FloatRange(0), default=0, metavar="N", help="The number of GPUs for each model."
)
@click.option("--resume", metavar="RUN", help="Continue an interrupted run (`last` for the newest).")
@click.option("--check", "judge", is_flag=True, help="Run the checks after recording, as `audit check` does.")
@json_option
@add_common_options
def run(store: str | None, as_json: bool, resume: str | None, judge: bool, data: str | None, **options: Any) -> int:
    """Record a dataset through its pipeline, and through a model if given.

    \b
    audit run photos/val --model checkpoint.pt --pipeline eval.py

    Exit code 1 if the run failed: every sample failed, more failed than --max-failures allows, or it was stopped.
    """
    if data and options["dataset"]:
        raise click.UsageError(
            f"The dataset was given twice, as {data!r} and as --dataset {options['dataset']!r}. Give it once."
        )
    options["dataset"] = options["dataset"] or data
    if not options["dataset"] and not resume:
        raise click.UsageError("No dataset was given. Run: audit run DATA (or --dataset DATA), or pass --resume RUN.")
    place = store_location(store)
    # Read before recording: a mistake in the configuration must not show itself after hours.
    configuration = _configuration(options["trust"]) if judge else None
    # SIGTERM ends the run as Ctrl-C does: it can be read and resumed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ProgressBar("starting") as bar:
        if resume:
            from audit.api import resume as resume_run

            reference = None if resume == "last" else resume
            kept = {name: options[name] for name in _WHEN_RESUMED if options[name] is not None}
            recorded = resume_run(reference, store=place, progress=bar.show, **kept)
        else:
            from audit.api import run as record_run
            from audit.provenance import describe_command

            command = describe_command("audit", sys.argv[1:])
            recorded = record_run(store=place, command=command, progress=bar.show, **options)
    return _report(recorded, place, as_json, bar.shown_notes()) or (
        _judge(recorded, place, as_json, configuration) if judge else 0
    )


def _report(recorded: Run, place: str, as_json: bool, shown: set[str]) -> int:
    from audit.api import open as open_store
    from audit.lineage.failures import failure_groups
    from audit.lineage.mistakes import confident_mistakes
    from audit.report.run_text import run_summary

    with open_store(place, allow_damaged=True) as opened:
        failures = failure_groups(opened.reader, recorded.run_id) if recorded.failed else []
        mistakes = confident_mistakes(opened.reader, recorded.run_id) if recorded.wrong else []
        stages = [stage.name for stage in opened.reader.rows(Stage, recorded.run_id, order="stage")]
        location = opened.location
        is_detection = recorded.task == "detection"
        precision = opened.mean_average_precision(recorded.run_id) if is_detection else None
        points = opened.keypoint_average_precision(recorded.run_id) if is_detection else None
    if as_json:
        from audit import plainjson

        click.echo(plainjson.dumps(run_json(recorded, location, stages, failures, precision, points)))
    else:
        console().print(run_summary(recorded, location, stages, failures, mistakes, precision, points, shown))
    if recorded.status == "interrupted":
        click.echo(f"Interrupted. Continue it with: audit run --resume {recorded.run_id}", err=True)
        return INTERRUPT_CODE
    return 0 if recorded.status == "complete" else 1


def _configuration(trust: bool) -> Configuration:
    from audit.checks.config import load_configuration

    return load_configuration(trust=trust)


def _judge(recorded: Run, place: str, as_json: bool, configuration: Configuration | None) -> int:
    from audit.checks.runner import run_checks
    from audit.cli.check import show

    return show(run_checks(place, recorded.run_id, config=configuration), err=as_json)


def run_json(
    recorded: Run,
    location: str,
    stages: list[str],
    failures: Sequence[FailureGroup],
    precision: AveragePrecision | None = None,
    points: AveragePrecision | None = None,
) -> dict[str, Any]:
    """Return what `audit run --json` prints."""
    measured = {} if precision is None else {"mean_average_precision": asdict(precision)}
    if points is not None and points.all is not None:
        measured["keypoint_average_precision"] = asdict(points)
    return measured | {
        "run_id": recorded.run_id,
        "name": recorded.name,
        "store": location,
        "status": recorded.status,
        "samples": recorded.samples,
        "failed": recorded.failed,
        "wrong": recorded.wrong if recorded.graded else None,
        "accuracy": recorded.accuracy,
        "capture": recorded.capture,
        "stages": stages,
        "seconds": recorded.seconds,
        "warnings": recorded.warnings,
        "errors": [asdict(group) for group in failures],
    }
