"""A DuckDB connection over a choice of runs, locked down before anything is asked.

It holds views alone, no table: what is to be read is in files that `parts.PartFilesystem` shows it.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache, partial
from operator import attrgetter
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from audit.records import Part, Run
from audit.store.filesystem import Filesystem
from audit.store.forked_connections import keep_when_forked
from audit.store.manifest import Manifest
from audit.store.plain_arrays import array_of
from audit.store.read import reencoded_pictures
from audit.store.read.duckdb_files import PROTOCOL, PartFilesystem, all_parts
from audit.store.read.index_lookup import IndexLookup
from audit.store.schema import RUNS, SCHEMAS, is_older, schema_at
from audit.store.sql_literal import literal
from audit.store.views import MACROS, VIEWS, latest_view

_SETTINGS = {
    "allowed_directories": [f"{PROTOCOL}://"],
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "enable_external_access": False,
    "lock_configuration": True,
}


#: For so few rows a second thread of DuckDB costs more than it saves: threads take turns to ask Python for the parts.
_FEW_ROWS = 250_000
#: A query with one of these words asks what there is: then everything must be there.
_LISTING = re.compile(r"\b(?:(?:show|describe|summarize|pragma|information_schema)\b|duckdb_|pg_|sqlite_)")
_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"--[^\n]*")


@dataclass(frozen=True, slots=True)
class Spill:
    """A folder for what does not fit into so many bytes of memory."""

    folder: str
    memory: int

    def settings(self) -> dict[str, object]:
        """Return DuckDB's settings for it."""
        return {
            "temp_directory": self.folder,
            "memory_limit": f"{self.memory // 2**20}MiB",
            # Keeping the order of rows would keep them in memory.
            "preserve_insertion_order": False,
            # The first file of every table is empty, so that DuckDB takes all tables for empty: the order in which a query
            # names them is better than one that is chosen by that.
            "disabled_optimizers": "join_order,build_side_probe_side",
            # Long queries read the same parts several times.
            "parquet_metadata_cache": True,
        }


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """One connection over one choice of runs. Tables, views and macros are made when a query first names them."""

    connection: duckdb.DuckDBPyConnection
    files: PartFilesystem
    lookup: IndexLookup
    #: The statement that makes each table, view and macro, by its name. Those that were made are gone from it.
    _definitions: dict[str, str]
    #: Whether queries can compare pictures.
    has_function: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _process: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        _OPEN.add(self)
        keep_when_forked(self)

    def close(self) -> None:
        """Close the connection. Does nothing in a process that was forked since: DuckDB's threads are not in it."""
        if self._process == os.getpid():
            self.connection.close()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Return a connection of its own over the same tables and views."""
        return self.connection.cursor()

    def parts_of(self, table: str) -> list[tuple[str, str, Part]]:
        """Return the parts of a table: the name by which DuckDB opens each, and the run that it belongs to."""
        return self.files.parts_of(table)

    def serve(self, query: str | None) -> None:
        """Define every view that the query names, or all of them if it is None or asks for a list."""
        asked = query.lower() if query is not None else None
        with self._lock:
            if asked is None or _LISTING.search(asked):
                wanted = list(self._definitions)
            else:
                wanted = [
                    name for name in _words(asked) if name in self._definitions or name == reencoded_pictures.FUNCTION
                ]
            for name in wanted:
                self._define(name)

    def _define(self, name: str) -> None:
        if name == reencoded_pictures.FUNCTION and not self.has_function:
            self._define("payloads")
            self.has_function = True
            reencoded_pictures.register(self.connection, partial(_ask, weakref.ref(self)))
        statement = self._definitions.pop(name, None)
        if statement is None:
            return
        # A table needs files alone; its columns may have the names of other tables.
        for needed in _words(statement) if name not in SCHEMAS and name != "runs" else ():
            self._define(needed)
        self.connection.execute(statement)


def _ask(session: weakref.ref[Session], query: str, parameters: list[Any]) -> list[tuple[Any, ...]]:
    """Return the answer to a query that a function of ours asks while another query calls it."""
    held = session()
    assert held is not None, "a query of this session is running"
    with held.connection.cursor() as cursor:
        return cursor.execute(query, parameters).fetchall()


_OPEN: weakref.WeakSet[Session] = weakref.WeakSet()


@atexit.register
def _close_open() -> None:
    """Close what the user left open: DuckDB complains at the end of a process about a function that is still registered."""
    for session in list(_OPEN):
        if session.has_function:
            session.close()


@lru_cache(maxsize=512)
def _words(query: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_WORD.findall(_COMMENT.sub("", query))))


def connect(
    filesystem: Filesystem,
    manifests: list[Manifest],
    spill: Spill | None = None,
    *,
    memory_limit: int | None = None,
    verify: bool | None = None,
) -> Session:
    """Return a connection that has every table and view over these runs; it writes to disk only where `spill` allows it.

    `memory_limit` are the bytes that DuckDB may use; `verify` decides whether parts are checked before they are read.
    """
    connection = duckdb.connect(":memory:")
    files = PartFilesystem(filesystem, verify=verify)
    if memory_limit is not None:
        connection.execute(f"SET memory_limit = '{int(memory_limit)}B'")
    for table, schema in SCHEMAS.items():
        files.hold(table, partial(_empty_file, schema))
    versions = {(part.table, part.schema) for manifest in manifests for part in manifest.parts}
    older = sorted((table, version) for table, version in versions if is_older(table, version))
    for table, version in older:
        files.hold(table, partial(_empty_file, schema_at(table, version)), version)
    runs = [manifest.run for manifest in manifests]
    files.hold("runs", lambda: _file(runs_table(runs)))
    connection.register_filesystem(files)
    settings = spill.settings() | _SETTINGS if spill else {"temp_directory": ""} | _SETTINGS
    if sum(part.rows for manifest in manifests for part in manifest.parts) <= _FEW_ROWS:
        settings = {"threads": 1} | settings
    connection.execute("; ".join(f"SET {setting} = {literal(value)}" for setting, value in settings.items()))
    files.expose(manifests)
    definitions = {name: _define_table(name, older) for name in ("runs", *SCHEMAS)}
    complete = [manifest.run.run_id for manifest in manifests if manifest.run.status == "complete"]
    views = {**VIEWS, "latest": latest_view(complete[-1] if complete else None)}
    definitions |= {name: f"CREATE VIEW {name} AS {body}" for name, body in views.items()}
    definitions |= {
        signature.split("(")[0]: f"CREATE MACRO {signature} AS {body}" for signature, body in MACROS.items()
    }
    return Session(connection, files, IndexLookup(files.open, filesystem), definitions)


def _define_table(table: str, older: Sequence[tuple[str, int]]) -> str:
    columns = ", ".join(f'"{name}"' for name in (RUNS if table == "runs" else SCHEMAS[table]).names)
    # What a run's part says of its run is the name of its file; `runs` itself is of no run.
    if table in SCHEMAS:
        versions = [version for name, version in older if name == table]
        source = union([all_parts(table), *(all_parts(table, version) for version in versions)])
    else:
        source = f"read_parquet({literal(all_parts(table))}, hive_partitioning = false)"
    return f'CREATE VIEW "{table}" AS SELECT {columns} FROM {source}'


def union(groups: Sequence[str | list[str]]) -> str:
    """Return the SQL that reads groups of parts; columns that a group does not have are NULL in its rows."""
    if len(groups) == 1:
        return scan(groups[0])
    return "(" + " UNION ALL BY NAME ".join(f"FROM {scan(group)}" for group in groups) + ")"


def scan(names: str | list[str]) -> str:
    """Return the SQL that reads parts by the names DuckDB knows them by."""
    # The names carry run_id=…, so that a condition on the run leaves other runs' files closed.
    return f"read_parquet({literal(names)}, hive_partitioning = true, hive_types = {{'run_id': VARCHAR}})"


@cache
def _empty_file(schema: pa.Schema) -> bytes:
    return _file(pa.Table.from_batches([], schema=schema))


def _file(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none", store_schema=False)
    return sink.getvalue()


def runs_table(runs: list[Run]) -> pa.Table:
    """Return the `runs` table, made from the manifests, in the order the runs were begun."""
    rows = map(attrgetter(*RUNS.names), runs)
    columns = dict(zip(RUNS.names, map(list, zip(*rows, strict=True)), strict=True)) if runs else {}
    for name, change in _AS_STORED.items():
        columns[name] = [change(value) for value in columns.get(name, ())]
    graded = [run.graded for run in runs]
    columns["wrong"] = [wrong if count else None for wrong, count in zip(columns.get("wrong", ()), graded, strict=True)]
    return pa.table([array_of(columns.get(name, ()), RUNS.field(name).type) for name in RUNS.names], schema=RUNS)


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


#: Columns whose values are kept in another form by a manifest.
_AS_STORED: dict[str, Callable[[Any], object]] = {
    "started_at": _time,
    "finished_at": _time,
    "versions": json.dumps,
    "recipe": json.dumps,
    "tags": lambda tags: list(tags.items()),
}
