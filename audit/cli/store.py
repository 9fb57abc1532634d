"""`audit store`: verify what was committed, merge small parts, or delete a run."""

from __future__ import annotations

import sys

import click

from audit.cli.bar import ProgressBar
from audit.cli.groups import CommandGroup
from audit.cli.options import add_common_options, console, debug_option, json_option
from audit.display import to_visible


@click.group(cls=CommandGroup)
def store() -> None:
    """Maintain a store: show sizes, find damage, sign runs, merge parts, delete runs and leftovers."""


@store.command()
@click.argument("run", required=False)
@json_option
@add_common_options
def stats(run: str | None, store: str | None, as_json: bool) -> None:
    """Show how much the store, or one run, holds: runs, parts, rows and bytes of each table."""
    from audit.api import open as open_store
    from audit.report.store_text import stats_table

    with open_store(store) as opened:
        found = opened.stats(run)
    if as_json:
        from audit import plainjson

        click.echo(plainjson.dumps(found.as_json(), indent=1))
    else:
        console().print(stats_table(found))


@store.command()
@click.argument("run", required=False)
@click.option("--key", metavar="FILE.pub", help="Also require that every run is as the owner of this key signed it.")
@json_option
@add_common_options
def verify(run: str | None, key: str | None, store: str | None, as_json: bool) -> int:
    """Check every part against its manifest (digest, size, rows, range of indices), and every manifest against its parts
    (its own digest, counts, accuracy). Exit code 1 if something is damaged."""
    from audit import plainjson
    from audit.api import open as open_store

    with open_store(store, allow_damaged=True) as opened, ProgressBar("verifying") as bar:
        damage = opened.verify(run, key=key, progress=bar.show)
        parts = (
            sum(len(opened.reader.manifest(row.run_id).parts) for row in opened.runs())
            if run is None
            else len(opened.reader.manifest(run).parts)
        )
    if as_json:
        click.echo(plainjson.dumps({"parts": parts, "damaged": [item.as_json() for item in damage]}))
    else:
        for item in damage:
            click.secho(to_visible(f"{item.run_id} {item.file} {item.problem}"), fg="red")
        click.echo(f"{parts} parts checked, {len(damage)} damaged")
    return 1 if damage else 0


@store.command()
@click.argument("run", required=False)
@json_option
@add_common_options
def compact(run: str | None, store: str | None, as_json: bool) -> int:
    """Merge the small parts of a run (every run, unless one is named) and sort its rows by index. Exit code 1 if a run
    could not be merged; the others are."""
    from dataclasses import asdict

    from audit import plainjson
    from audit.api import open as open_store
    from audit.errors import AuditError

    merged = []
    failed = 0
    with open_store(store) as opened:
        for reference in [run] if run else [row.run_id for row in opened.runs() if row.status != "running"]:
            try:
                item = opened.compact(reference)
            except AuditError as error:
                if run:
                    raise
                failed += 1
                click.secho(to_visible(f"audit: {reference} was not merged: {error}"), fg="red", err=True)
                continue
            merged.append(asdict(item))
            if not as_json:
                click.echo(
                    f"{item.run_id}  {item.parts_before} parts → {item.parts_after}, "
                    f"{item.bytes_before:,} → {item.bytes_after:,} bytes"
                )
    if as_json:
        click.echo(plainjson.dumps(merged))
    return 1 if failed else 0


@store.command()
@click.argument("file", metavar="FILE")
@debug_option
def keygen(file: str) -> None:
    """Make an Ed25519 key for signing runs. FILE is the private key, FILE.pub the public key for verification."""
    from audit.store.maintain.signatures import make_keys

    click.echo(f"The private key is {file}, the public key is {make_keys(file)}", err=True)


@store.command()
@click.argument("run", required=False)
@click.option("--key", metavar="FILE", required=True, help="The private Ed25519 key, a PEM file.")
@json_option
@add_common_options
def sign(run: str | None, key: str, store: str | None, as_json: bool) -> None:
    """Sign a run as it is committed now, so that `audit store verify --key FILE.pub` finds every later change."""
    from audit import plainjson
    from audit.api import open as open_store

    with open_store(store) as opened:
        signed = opened.sign(run, key=key)
    if as_json:
        click.echo(plainjson.dumps(signed.as_json()))
    else:
        click.echo(f"{signed.run_id} was signed at commit {signed.commit} with the key {signed.key}")


@store.command()
@click.argument("run", required=False)
@click.option("--key", metavar="FILE", help="Sign the statement with this private Ed25519 key, in a DSSE envelope.")
@click.option(
    "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Write it to a file. [default: print it]"
)
@add_common_options
def attest(run: str | None, key: str | None, output: str | None, store: str | None) -> None:
    """Write an in-toto statement of a run: its data, code, model, results and environment, as JSON."""
    from audit import plainjson
    from audit.api import open as open_store
    from audit.output_file import write_text

    with open_store(store) as opened:
        text = plainjson.dumps(opened.attest(run, key=key), indent=1)
    if output:
        write_text(output, f"{text}\n")
    else:
        click.echo(text)


@store.command()
@json_option
@add_common_options
def clean(store: str | None, as_json: bool) -> None:
    """Delete what killed processes left behind: temporary files, parts that no commit lists, unfinished removals.
    Nothing of a running writer is deleted; in a bucket, nothing that is younger than a day."""
    from audit import plainjson
    from audit.api import open as open_store

    with open_store(store, allow_damaged=True) as opened:
        cleaned = opened.clean()
    if as_json:
        click.echo(plainjson.dumps(cleaned.as_json()))
        return
    click.echo(f"{cleaned.files} files ({cleaned.bytes:,} bytes) and {cleaned.folders} folders deleted")
    for run_id, reason in cleaned.skipped.items():
        click.echo(to_visible(f"{run_id} was left as it is: {reason}"), err=True)


@store.command()
@click.argument("run")
@click.option("--yes", is_flag=True, help="Delete without asking.")
@add_common_options
def remove(run: str, yes: bool, store: str | None) -> None:
    """Delete one run."""
    from audit.api import open as open_store

    with open_store(store, allow_damaged=True) as opened:
        found = opened.run(run)
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError(f"Deleting the run {found.run_id} must be confirmed. Pass --yes.")
            click.confirm(f"Delete run {found.run_id} ({found.samples:,} samples) for good?", abort=True)
        opened.remove(found.run_id)
    click.echo(f"Deleted {found.run_id}", err=True)
