"""Options that several commands share, each named once."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from audit.config import DAMAGED_VARIABLE, DEFAULT_STORE, STORE_VARIABLE

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


def _allow_damaged(context: click.Context, _: click.Parameter, given: bool) -> None:
    """Through the environment, so that child processes of the command know it too."""
    if given:
        before = os.environ.get(DAMAGED_VARIABLE)
        os.environ[DAMAGED_VARIABLE] = "1"
        context.call_on_close(lambda: _restore(before))


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(DAMAGED_VARIABLE, None)
    else:
        os.environ[DAMAGED_VARIABLE] = before


damaged_option = click.option(
    "--allow-damaged",
    is_flag=True,
    expose_value=False,
    callback=_allow_damaged,
    help="Leave aside runs whose manifest is damaged, instead of refusing the store.",
)


def common(command: F) -> F:
    """--store, --allow-damaged and --debug, which every command takes."""
    return store_option(damaged_option(debug_option(command)))


def parse_tags(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Read KEY=VALUE texts."""
    tags: dict[str, str] = {}
    for tag in given:
        key, equals, value = tag.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"a tag must be KEY=VALUE, got {tag!r}")
        if key in tags:
            raise click.BadParameter(f"{key} is given twice, as {tags[key]!r} and as {value!r}")
        tags[key] = value
    return tags


def console(*, stderr: bool = False) -> Console:
    """A console that keeps quiet about styles when nobody sees them."""
    import sys

    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            # rich would end the process with 1: what a reader that went away means is for the boundary to say.
            raise BrokenPipeError

        def print(self, *objects: Any, **options: Any) -> None:
            if seen:
                super().print(*objects, **options)
                return
            # Tables are padded to their widths; in a file or a pipe, that is only noise at the ends of lines.
            with self.capture() as captured:
                super().print(*objects, **options)
            text = "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
            self.file.write(text)
            self.file.flush()

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
