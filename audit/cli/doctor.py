"""`audit doctor`: say before a long run what a recording of a dataset will hold."""

from __future__ import annotations

import click

from audit.cli.options import debug_option, json_option, verdict


@click.command()
@click.argument("dataset")
@click.option("--samples", type=click.IntRange(min=1), default=4, show_default=True, help="How many samples to try.")
@json_option
@debug_option
def doctor(dataset: str, samples: int, as_json: bool) -> None:
    """Record a few samples of DATASET, and report what a recording will hold and what it will miss.

    DATASET is what `audit run --dataset` takes, for instance FILE.py:dataset. Nothing is stored. Exit code 1 if
    audit did not see a change of a value, a sample failed, or a replay differs.
    """
    from audit.api import doctor as diagnose

    found = diagnose(dataset, samples=samples)
    code = verdict(passed=found.is_complete)
    if as_json:
        from audit import plainjson

        click.echo(plainjson.dumps(found.as_json(), indent=1))
    else:
        from audit.report.doctor_text import doctor_text

        click.echo(doctor_text(found))
    raise SystemExit(code)
