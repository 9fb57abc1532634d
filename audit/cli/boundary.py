"""The one place that turns an error into a message and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import Any, TextIO

import click

from audit.cli.groups import CommandGroup
from audit.cli.options import VERDICT
from audit.display import to_visible
from audit.errors import AuditError
from audit.extras import missing_extra

INTERRUPT_CODE = 130


class Boundary(CommandGroup):
    """A group of commands that never shows a traceback unless --debug asks for one."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        _open_streams()
        debug = "--debug" in (kwargs.get("args") or (args[0] if args else None) or sys.argv[1:])
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                code = super().main(*args, **{**kwargs, "standalone_mode": False})
            sys.exit(code if isinstance(code, int) else 0)
        except AuditError as error:
            _say(error.message, error.hint, debug)
            sys.exit(error.exit_code)
        except click.exceptions.Abort:
            sys.exit(INTERRUPT_CODE)
        except click.ClickException as error:
            _explain_run_option(error).show()
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(INTERRUPT_CODE)
        except MemoryError:
            _say("There is not enough memory for this command.", "Request fewer rows or columns.", debug)
            sys.exit(1)
        except Exception as error:
            missing = missing_extra(error, "This command") if isinstance(error, ModuleNotFoundError) else None
            if missing is not None:
                _say(missing.message, missing.hint, debug)
                sys.exit(missing.exit_code)
            where = f"{type(error).__name__}: {error}"
            _say(
                f"An internal error occurred in audit ({where}).",
                "Run the command again with --debug to see the traceback.",
                debug,
            )
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            # The reader of our output has closed the pipe (audit sql … | head): not an error. Caught here, because click would
            # exit with code 1. A verdict that the command has already reached still sets the exit code.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ctx.meta.get(VERDICT, 0)


def _open_streams() -> None:
    """Replace closed standard streams by the null device, so that printing does not fail."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print audit's own warnings as one sentence, and others in Python's form."""
    ours = category.__module__.partition(".")[0] == __name__.partition(".")[0]
    text = str(message) if ours else warnings.formatwarning(message, category, filename, lineno, line).rstrip()
    click.secho(to_visible(text), fg="yellow", err=True)


def _explain_run_option(error: click.ClickException) -> click.ClickException:
    """Return an error that says where the run goes, if `--run` was given to a command that takes the run as an argument."""
    if not isinstance(error, click.NoSuchOption) or error.option_name != "--run" or error.ctx is None:
        return error
    arguments = [found for found in error.ctx.command.params if isinstance(found, click.Argument)]
    places = [argument.make_metavar(error.ctx) for argument in arguments]
    if not any("RUN" in place or place == "[A]" for place in places):
        return error
    form = f"{error.ctx.command_path} {' '.join(places)}"
    return click.UsageError(f"No such option '--run'. Pass the run as an argument: {form}", error.ctx)


def _say(message: str, hint: str | None, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    # A message may quote a store, which anyone may have written.
    click.secho(f"audit: {to_visible(message)}", fg="red", err=True)
    if hint:
        click.echo(to_visible(hint), err=True)
