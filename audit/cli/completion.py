"""`audit completion`: the script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from audit.cli.options import debug_option


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@debug_option
def completion(shell: str) -> None:
    """Print the script that completes audit's commands and options in a shell.

    \b
    eval "$(audit completion bash)"              # in ~/.bashrc
    eval "$(audit completion zsh)"               # in ~/.zshrc
    audit completion fish > ~/.config/fish/completions/audit.fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click knows all three"
    root = click.get_current_context().find_root().command
    click.echo(found(root, {}, "audit", "_AUDIT_COMPLETE").source())
