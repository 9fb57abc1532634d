"""Writes docs/cli.md from the commands' own --help, so that the two cannot disagree.

python docs/make_cli.py
"""

from __future__ import annotations

import os
from pathlib import Path

import click


def reference() -> str:
    """The whole reference as Markdown."""
    from audit.cli.main import cli

    # A fixed width: the page must not depend on the terminal it was made in.
    os.environ["COLUMNS"] = "110"
    pages = ["# Command line\n", "Written by `make docs` from each command's `--help`.\n"]
    pages += _pages(cli, "audit", None)
    return "\n".join(pages)


def _pages(command: click.Command, name: str, parent: click.Context | None) -> list[str]:
    settings = {**command.context_settings, "max_content_width": 110, "terminal_width": 110}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    title = context.command_path
    pages = [f"## {title}\n", f"```\n{command.get_help(context).rstrip()}\n```\n"]
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            pages += _pages(found, inner, context)
    return pages


if __name__ == "__main__":
    (Path(__file__).parent / "cli.md").write_text(reference(), encoding="utf-8")
