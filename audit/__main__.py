"""`python -m audit` and the `audit` command."""

from __future__ import annotations


def main() -> None:
    """The command line."""
    from audit.cli.main import cli

    cli()


if __name__ == "__main__":
    main()
