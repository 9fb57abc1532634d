"""`python -m audit` and the `audit` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from audit.cli.main import cli

    cli(prog_name="audit")  # also as `python -m audit`, so that help and completion speak of one program


if __name__ == "__main__":
    main()
