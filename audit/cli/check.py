"""`audit check`: run the checks on a run, and exit with 1 if one fails."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from audit.cli.options import add_common_options, trust_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from audit.api import Store
    from audit.checks.report import Report

FORMATS = ("text", "json", "junit", "sarif", "github", "markdown")
_SUMMARY = "GITHUB_STEP_SUMMARY"


@click.command()
@click.argument("run", required=False)
@click.option(
    "--config", metavar="FILE", help="The configuration. [default: audit.toml, else pyproject.toml's tool.audit]"
)
@click.option("--baseline", metavar="RUN|FILE", help="A run, or a file of `audit baseline export`, to compare with.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write the report to a file; the text also goes to standard error.",
)
@click.option(
    "--write",
    "files",
    metavar="FORMAT=FILE",
    multiple=True,
    help="Also write the report of the same run to a file, in a format of --format; repeatable.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "info"]),
    help="The lowest severity that makes the command fail. [default: error]",
)
@click.option("--only", metavar="NAME", multiple=True, help="Run only this check; repeatable.")
@click.option("--skip", metavar="NAME", multiple=True, help="Do not run this check; repeatable.")
@click.option("--checks", metavar="FILE.py", multiple=True, help="Also run the checks of this Python file; repeatable.")
@click.option("--list", "listing", is_flag=True, help="List every check with its options, and run none.")
@click.option("--init", is_flag=True, help="Write a commented audit.toml whose limits come from the run.")
@click.option(
    "--pictures",
    metavar="inline|FOLDER",
    help="With a report in Markdown: show the samples of the worst findings, inside the text or as files of a folder.",
)
@click.option(
    "--probe",
    is_flag=True,
    help="Predict a few hundred samples again with other channels, normalisation, aspect or class order; runs the model.",
)
@click.option(
    "--no-record", "unrecorded", is_flag=True, help="Do not store the findings: no file of the store changes."
)
@click.option("-v", "--verbose", is_flag=True, help="Also list the checks that passed, and why others were skipped.")
@trust_option
@add_common_options
def check(
    run: str | None,
    config: str | None,
    form: str,
    as_json: bool,
    output: str | None,
    files: Sequence[str],
    listing: bool,
    init: bool,
    pictures: str | None,
    unrecorded: bool,
    verbose: bool,
    store: str | None,
    **options: Any,
) -> int:
    """Run the checks of audit.toml on a run, worst finding first.

    Exit code 1 if a check of severity error fails (--fail-on changes the severity), 2 if the configuration is invalid.
    """
    form = "json" if as_json else form
    written = [_format_and_file(given) for given in files]
    if pictures and "markdown" not in {form, *(kind for kind, _ in written)}:
        raise click.UsageError("--pictures needs a report in Markdown: add --format markdown or --write markdown=FILE.")
    if listing:
        _list(form, options["checks"])
        return 0
    from audit.api import open as open_store

    with open_store(store) as opened:
        if init:
            place = opened.write_check_config(config or "audit.toml", run)
            click.echo(f"Wrote {place}", err=True)
            return 0
        report = opened.check(run, config=config, record=not unrecorded, **options)
        markdown = _with_pictures(opened, report, pictures) if pictures else None
    _write(report, written, markdown)
    return show(report, form, output, verbose=verbose, text=markdown if form == "markdown" else None)


def _format_and_file(given: str) -> tuple[str, str]:
    """Return the parts of FORMAT=FILE."""
    kind, equals, file = given.partition("=")
    if kind not in FORMATS or not equals or not file:
        raise click.UsageError(f"--write must be FORMAT=FILE with one of {', '.join(FORMATS)}, got {given!r}.")
    return kind, file


def _write(report: Report, files: list[tuple[str, str]], markdown: str | None) -> None:
    """Write the report to files; `markdown` is made already."""
    from audit.output_file import write_text
    from audit.report.findings.formats import FORMS

    for kind, file in files:
        write_text(file, markdown if kind == "markdown" and markdown is not None else FORMS[kind](report))
        click.echo(f"Wrote {file}", err=True)


def _with_pictures(opened: Store, report: Report, pictures: str) -> str:
    """Return the Markdown with pictures, and write those that belong into a folder."""
    from audit.checks.finding_pictures import finding_pictures
    from audit.report.findings.markdown import as_markdown, write_pictures

    found = finding_pictures(opened.reader, report)
    if pictures == "inline":
        return as_markdown(report, found)
    write_pictures(found, pictures)
    return as_markdown(report, found, pictures)


def show(
    report: Report,
    form: str = "text",
    output: str | None = None,
    *,
    verbose: bool = False,
    err: bool = False,
    text: str | None = None,
) -> int:
    """Print or write a report and return the exit code. `err` prints text on standard error; `text` is made already."""
    from audit.output_file import write_text
    from audit.report.findings.formats import FORMS, append_summary
    from audit.report.findings.text import text_lines

    if form == "github" and os.environ.get(_SUMMARY):
        append_summary(report, os.environ[_SUMMARY])
    if output:
        write_text(output, FORMS[form](report) if text is None else text)
        _lines(text_lines(report, verbose=verbose), err=True)
        click.echo(f"Wrote {output}", err=True)
    elif form == "text":
        _lines(text_lines(report, verbose=verbose), err=err)
    else:
        sys.stdout.write(FORMS[form](report) if text is None else text)
    return 0 if report.passed else 1


def _list(form: str, files: Sequence[str]) -> None:
    from audit import plainjson
    from audit.checks.own_checks import own_checks
    from audit.checks.registry import all_checks
    from audit.report.findings.text import list_json, list_lines

    checks = [*all_checks(), *own_checks({}, None, files)]
    if form == "json":
        click.echo(plainjson.dumps(list_json(checks), indent=1))
    else:
        _lines(list_lines(checks))


def _lines(lines: Iterable[tuple[str, str]], *, err: bool = False) -> None:
    for style, line in lines:
        colour = style if style in ("red", "yellow", "green") else None
        click.secho(line, fg=colour, dim=style == "dim", bold=style == "bold", err=err)
