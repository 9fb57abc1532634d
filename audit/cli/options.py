"""Options that several commands share, each named once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from audit.config import DEFAULT_STORE, STORE_VARIABLE

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])

store_option = click.option(
    "--store",
    metavar="PLACE",
    help=f"The store: a directory, or s3://bucket/prefix. [default: ${STORE_VARIABLE}, else ./{DEFAULT_STORE}]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON alone on standard output.")
debug_option = click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback when something fails.")
trust_option = click.option(
    "--trust", is_flag=True, help="Run code that the store names, though this machine did not record it."
)


def common(command: F) -> F:
    """--store and --debug, which every command takes."""
    return store_option(debug_option(command))


def console(*, stderr: bool = False) -> Console:
    """A console that keeps quiet about styles when nobody sees them."""
    import sys

    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            # rich would end the process with 1: what a reader that went away means is for the boundary to say.
            raise BrokenPipeError

    seen = (sys.stderr if stderr else sys.stdout).isatty()
    # In a file or a pipe there is no edge to keep to, and a line cut short would lose its end.
    return Screen(stderr=stderr, highlight=False, width=None if seen else _WIDE)


_WIDE = 200
VERDICT = "audit.verdict"


def verdict(*, passed: bool) -> int:
    """The exit code of a command that judges. Said before it prints, it stands though nobody reads to the end."""
    code = 0 if passed else 1
    click.get_current_context().meta[VERDICT] = code
    return code
