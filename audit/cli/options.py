"""Options that several commands share, each defined once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from audit.config import DAMAGED_VARIABLE, DEFAULT_STORE, STORE_VARIABLE, VERIFY_VARIABLE

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])

store_option = click.option(
    "--store",
    metavar="PLACE",
    help=f"The store: a directory, or s3://bucket/prefix. [default: ${STORE_VARIABLE}, else ./{DEFAULT_STORE}]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on standard output.")
debug_option = click.option("--debug", is_flag=True, expose_value=False, help="Show a traceback if the command fails.")
trust_option = click.option(
    "--trust", is_flag=True, help="Run code that the store names, even if this machine did not record it."
)


def _set_variable(variable: str) -> Callable[[click.Context, click.Parameter, bool | None], None]:
    """Return a callback that sets an environment variable, so that child processes of the command see the option too."""

    def callback(context: click.Context, _: click.Parameter, given: bool | None) -> None:
        if given is None:
            return
        before = os.environ.get(variable)
        os.environ[variable] = "1" if given else "0"
        context.call_on_close(lambda: _restore(variable, before))

    return callback


def _restore(variable: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = before


damaged_option = click.option(
    "--allow-damaged",
    is_flag=True,
    default=None,
    expose_value=False,
    callback=_set_variable(DAMAGED_VARIABLE),
    help="Ignore runs whose manifest is damaged, instead of stopping with an error.",
)
verify_option = click.option(
    "--verify-reads/--no-verify-reads",
    default=None,
    expose_value=False,
    callback=_set_variable(VERIFY_VARIABLE),
    help="Check every part against its digest before it is read. [default: for stores on this machine]",
)


def add_common_options(command: F) -> F:
    """Add --store, --allow-damaged, --verify-reads and --debug, which every command has."""
    return store_option(damaged_option(verify_option(debug_option(command))))


def parse_tags(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Parse KEY=VALUE texts into a dictionary."""
    tags: dict[str, str] = {}
    for tag in given:
        key, equals, value = tag.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"--tag must be KEY=VALUE, got {tag!r}")
        if key in tags:
            raise click.BadParameter(f"{key} is given twice, as {tags[key]!r} and as {value!r}")
        tags[key] = value
    return tags


def console(*, stderr: bool = False) -> Console:
    """Return a console that omits styles if its output is not a terminal."""
    import sys

    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            # rich would end the process with 1; cli/boundary.py decides what a closed pipe means.
            raise BrokenPipeError

        def print(self, *objects: Any, **options: Any) -> None:
            if seen:
                super().print(*objects, **options)
                return
            # Tables are padded to their widths; in a file or a pipe, the trailing spaces are not wanted.
            with self.capture() as captured:
                super().print(*objects, **options)
            text = "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
            self.file.write(text)
            self.file.flush()

    seen = (sys.stderr if stderr else sys.stdout).isatty()
    # A file or a pipe has no width, so lines must not be cut.
    return Screen(stderr=stderr, highlight=False, width=None if seen else _WIDE)


_WIDE = 200
VERDICT = "audit.verdict"


def verdict(*, passed: bool) -> int:
    """Set and return the exit code of a verdict. Call it before printing: a closed pipe must not change the code."""
    code = 0 if passed else 1
    click.get_current_context().meta[VERDICT] = code
    return code
