"""The interactive prompt of `audit sql`: history, and completion of table and column names."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audit.api import Store
from audit.cli.interrupt import run_interruptible
from audit.display import to_visible
from audit.errors import AuditError
from audit.report.results import write_stream

if TYPE_CHECKING:
    from audit.store.read.relation import Relation

_KEYWORDS = "FROM SELECT WHERE GROUP BY ORDER LIMIT JOIN USING AND OR NOT DISTINCT COUNT DESCRIBE SUMMARIZE SHOW TABLES"
_WELCOME = "SQL over the store, ended by ; — tables: .tables, columns: .columns TABLE, leave: .exit or Ctrl-D"


class Completer:
    """Completes keywords, tables and columns."""

    def __init__(self, store: Store) -> None:
        query = "SELECT DISTINCT table_name, column_name FROM information_schema.columns"
        rows = store.sql(query).fetchall()
        self.tables = sorted({table for table, _ in rows})
        self.columns = {table: [column for t, column in rows if t == table] for table in self.tables}
        names = {column for _, column in rows}
        self.words = sorted({*self.tables, *names, *_KEYWORDS.split()})

    def matches(self, text: str) -> list[str]:
        """Return every word that begins with the text, ignoring case."""
        return [word for word in self.words if word.lower().startswith(text.lower())]

    def __call__(self, text: str, state: int) -> str | None:
        found = self.matches(text)
        return found[state] if state < len(found) else None


def prompt(store: Store, runs: Any, timeout: float | None = None, memory_limit: str | None = None) -> None:
    """Read queries until the end of input; an error in one is shown and the next is read."""
    completer = Completer(store)
    with _edit_lines(completer):
        click.echo(_WELCOME, err=True)
        while (query := _read_query()) is not None:
            if query.startswith("."):
                if _command(query, completer):
                    return
            elif query:
                _answer(store, query, run=runs, timeout=timeout, memory_limit=memory_limit)


def _answer(store: Store, query: str, **limits: Any) -> None:
    try:
        answer = store.sql(query, **limits)
        run_interruptible(answer, lambda: _write(answer))
    except AuditError as error:
        click.secho(to_visible(error), fg="red", err=True)
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)


def _write(answer: Relation) -> None:
    write_stream(answer, sys.stdout, "table")
    sys.stdout.flush()


def _command(text: str, completer: Completer) -> bool:
    """Run a line that begins with a dot; return True to leave the prompt."""
    word, _, rest = text.partition(" ")
    if word in (".exit", ".quit", ".q"):
        return True
    if word == ".tables":
        click.echo("\n".join(completer.tables))
    elif word == ".columns" and rest.strip() in completer.columns:
        click.echo("\n".join(completer.columns[rest.strip()]))
    else:
        click.echo(_WELCOME, err=True)
    return False


def _read_query() -> str | None:
    lines: list[str] = []
    while True:
        try:
            line = input("audit> " if not lines else "   ... ")
        except EOFError:
            click.echo("", err=True)
            return None
        except KeyboardInterrupt:
            click.echo("", err=True)
            lines.clear()
            continue
        if not lines and line.strip().startswith("."):
            return line.strip()
        lines.append(line)
        text = "\n".join(lines).strip()
        if text.endswith(";") or not text:
            return text.rstrip(";").strip()


@contextlib.contextmanager
def _edit_lines(completer: Completer) -> Any:
    try:
        import readline
    except ImportError:
        yield
        return
    history = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "audit" / "sql_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(2000)
    readline.set_completer(completer)
    readline.set_completer_delims(" \t\n,()=<>*;.")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            # Queries may contain private data.
            history.touch(mode=0o600)
            readline.write_history_file(history)
