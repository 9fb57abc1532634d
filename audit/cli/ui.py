"""`audit ui`: look at a store in a browser."""

from __future__ import annotations

import click

from audit.cli.options import add_common_options
from audit.config import store_location


@click.command()
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; any address other than loopback needs the printed token.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="The port; 0 chooses a free one."
)
@click.option(
    "--token", metavar="TEXT", help="A token that every visitor needs. [default: none on loopback, else a random one]"
)
@click.option(
    "--replay/--no-replay",
    default=None,
    help="Whether pages may replay, which runs the recorded pipeline. [default: only on loopback]",
)
@click.option("--trust", is_flag=True, help="Also allow replay of runs that this machine did not record.")
@click.option("--write", is_flag=True, help="Allow pages to tag samples, and to rename and tag runs.")
@click.option("--open/--no-open", "browser", default=None, help="Open a browser. [default: when there is a display]")
@add_common_options
def ui(
    store: str | None,
    host: str,
    port: int,
    token: str | None,
    replay: bool | None,
    trust: bool,
    write: bool,
    browser: bool | None,
) -> None:
    """Show the store in a browser: runs, mistakes, pictures of every stage, comparisons, SQL. Read-only, unless --write is given."""
    from audit.web.server import Address, serve

    def announce(address: Address) -> None:
        click.echo(f"audit ui: {address.url}  (press Ctrl-C to stop)", err=True)
        if browser or (browser is None and _has_display()):
            import threading
            import webbrowser

            threading.Timer(0.5, webbrowser.open, [address.url]).start()

    serve(
        store_location(store),
        host=host,
        port=port,
        token=token,
        replay=replay,
        trust=trust,
        write=write,
        ready=announce,
    )


def _has_display() -> bool:
    import os
    import sys

    return sys.stdout.isatty() and (
        sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    )
