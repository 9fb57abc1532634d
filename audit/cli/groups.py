"""Groups of commands: help in sections with whole descriptions, and the nearest name for one that is mistyped."""

from __future__ import annotations

import difflib
import inspect

import click

#: The sections of `audit --help`, in the order in which a user meets them.
SECTIONS = {
    "Record": ("run",),
    "Ask": ("runs", "sql", "trace", "replay", "embed"),
    "Compare": ("diff",),
    "Gate": ("check", "baseline"),
    "Look": ("ui", "report", "tag", "select", "export"),
    "Maintain": ("store", "config", "doctor", "completion"),
}


class CommandGroup(click.Group):
    """A group whose help shows each command's whole description."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for an unknown name, raise an error with the nearest names."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], known, n=3, cutoff=0.5)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their sections, those without a section last."""
        names = self.list_commands(ctx)
        sections = {title: [name for name in members if name in names] for title, members in SECTIONS.items()}
        if ctx.parent is not None:
            sections = {}
        rest = [name for name in names if not any(name in members for members in sections.values())]
        for title, members in {**sections, "Commands": rest}.items():
            rows = [(name, _description(command)) for name in members if (command := self.get_command(ctx, name))]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _description(command: click.Command) -> str:
    """Return the first paragraph of a command's help on one line."""
    return " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].replace("\b", "").split())
