"""The `audit` command and its subcommands."""

from __future__ import annotations

import click

from audit import __version__
from audit.cli.baseline import baseline
from audit.cli.boundary import Boundary
from audit.cli.check import check
from audit.cli.diff import diff
from audit.cli.export import export
from audit.cli.replay import replay
from audit.cli.report import report
from audit.cli.run import run
from audit.cli.runs import runs
from audit.cli.sql import sql
from audit.cli.store import store
from audit.cli.trace import trace
from audit.cli.ui import ui


@click.group(cls=Boundary, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="audit")
def cli() -> None:
    """Why did the model say that about this file?

    Record a PyTorch pipeline stage by stage, then trace any prediction back to its source file.
    """


for command in (run, runs, sql, trace, replay, diff, check, baseline, report, export, ui, store):
    cli.add_command(command)
