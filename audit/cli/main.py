"""The `audit` command and its subcommands."""

from __future__ import annotations

import difflib
from typing import Any

import click

from audit import __version__
from audit.cli.baseline import baseline
from audit.cli.boundary import Boundary
from audit.cli.check import check
from audit.cli.completion import completion
from audit.cli.config import config
from audit.cli.diff import diff
from audit.cli.doctor import doctor
from audit.cli.embed import embed
from audit.cli.export import export
from audit.cli.replay import replay
from audit.cli.report import report
from audit.cli.run import run
from audit.cli.runs import runs
from audit.cli.select import select
from audit.cli.sql import sql
from audit.cli.store import store
from audit.cli.tag import tag
from audit.cli.trace import trace
from audit.cli.ui import ui
from audit.config import option_defaults
from audit.errors import UsageError


@click.group(cls=Boundary, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="audit")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Why did the model say that about this file?

    Record a PyTorch pipeline stage by stage, then trace any prediction back to its source file.

    Exit codes of every command: 0 success; 1 a negative result (a run or a check failed, a replay differs, something is
    damaged, the store has no such run or sample); 2 wrong usage (an unknown command, option or name, or a file or store that
    does not exist); 130 interrupted.
    """
    if ctx.invoked_subcommand != "config":
        ctx.default_map = _read_configured_options()


def _read_configured_options() -> dict[str, dict[str, Any]]:
    """Return the options that files configure, as click takes them: by command, then by name."""
    configured: dict[str, dict[str, Any]] = {}
    for default in option_defaults():
        command, option = default.name.split(".", 1)
        known = cli.commands.get(command)
        names = {parameter.name: parameter for parameter in known.params if parameter.name} if known else {}
        if option not in names:
            near = difflib.get_close_matches(option if known else command, names if known else cli.commands, n=1)
            hint = f"Did you mean {near[0]}?" if near else "See audit --help."
            raise UsageError(f"{default.origin} sets {default.name}, which is not an option of any command.", hint=hint)
        is_list = names[option].multiple and not isinstance(default.value, list)
        configured.setdefault(command, {})[option] = [default.value] if is_list else default.value
    return configured


_COMMANDS = (
    run,
    runs,
    sql,
    trace,
    replay,
    diff,
    check,
    baseline,
    doctor,
    report,
    tag,
    select,
    embed,
    export,
    ui,
    store,
    config,
    completion,
)
for command in _COMMANDS:
    cli.add_command(command)
