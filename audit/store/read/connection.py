"""A DuckDB connection over a choice of runs, locked down before anything is asked.

It holds views alone, no table: what is to be read is in files that `parts.PartFilesystem` shows it.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from audit.records import Part, Run
from audit.store.filesystem import Filesystem
from audit.store.manifest import Manifest
from audit.store.read.duckdb_files import PROTOCOL, PartFilesystem, all_parts, older_version
from audit.store.read.index_lookup import IndexLookup
from audit.store.schema import RUNS, SCHEMAS, schema_at
from audit.store.sql_literal import literal
from audit.store.task_views import VIEWS as TASK_VIEWS
from audit.store.training_views import VIEWS as TRAINING_VIEWS
from audit.store.views import MACROS, VIEWS, latest_view

_SETTINGS = {
    "allowed_directories": [f"{PROTOCOL}://"],
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
    "temp_directory": "",
    "enable_external_access": False,
    "lock_configuration": True,
}


_SELDOM = {**TASK_VIEWS, **TRAINING_VIEWS}
#: Made only for a query that names one of them, or that asks what there is: they take as long as all the rest.
_LATER = [f"CREATE VIEW {name} AS {body}" for name, body in _SELDOM.items()]
_LATER += [f"CREATE MACRO {signature} AS {body}" for signature, body in MACROS.items()]
_NAMES = (*_SELDOM, *(signature.split("(")[0] for signature in MACROS))
_NEED_THEM = (*_NAMES, "show", "describe", "pragma", "information_schema", "duckdb_", "pg_", "sqlite_")


@dataclass(slots=True)
class Session:
    """One connection over one choice of runs."""

    connection: duckdb.DuckDBPyConnection
    files: PartFilesystem
    exposed: dict[str, list[tuple[str, str, Part]]]
    lookup: IndexLookup
    _whole: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, query: str | None) -> None:
        """Have macros and training views ready when the query needs them; None when it is not known yet."""
        asked = query.lower() if query is not None else None
        if asked is not None and not any(word in asked for word in _NEED_THEM):
            return
        with self._lock:
            if not self._whole:
                for statement in _LATER:
                    self.connection.execute(statement)
                self._whole = True


def connect(filesystem: Filesystem, manifests: list[Manifest]) -> Session:
    """Return every table and view over these runs."""
    connection = duckdb.connect(":memory:")
    files = PartFilesystem(filesystem)
    for table, schema in SCHEMAS.items():
        files.hold(table, _empty_file(schema))
    older = sorted({(p.table, p.schema) for m in manifests for p in m.parts if older_version(p) is not None})
    for table, version in older:
        files.hold(table, _empty_file(schema_at(table, version)), version)
    files.hold("runs", _file(runs_table([manifest.run for manifest in manifests])))
    connection.register_filesystem(files)
    for setting, value in _SETTINGS.items():
        connection.execute(f"SET {setting} = {literal(value)}")
    for table, schema in {"runs": RUNS, **SCHEMAS}.items():
        columns = ", ".join(f'"{name}"' for name in schema.names)
        # What a run's part says of its run is the name of its file; `runs` itself is of no run.
        if table in SCHEMAS:
            versions = [version for name, version in older if name == table]
            source = union([all_parts(table), *(all_parts(table, version) for version in versions)])
        else:
            source = f"read_parquet({literal(all_parts(table))}, hive_partitioning = false)"
        connection.execute(f'CREATE VIEW "{table}" AS SELECT {columns} FROM {source}')
    complete = [manifest.run.run_id for manifest in manifests if manifest.run.status == "complete"]
    views = {name: body for name, body in VIEWS.items() if name not in _SELDOM}
    for view, body in {**views, "latest": latest_view(complete[-1] if complete else None)}.items():
        connection.execute(f"CREATE VIEW {view} AS {body}")
    # Only now: DuckDB lists all files of a table for every view that is made over it.
    exposed = files.expose(manifests)
    return Session(connection, files, exposed, IndexLookup(files.open))


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
    return _file(schema.empty_table())


def _file(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none", store_schema=False)
    return sink.getvalue()


def runs_table(runs: list[Run]) -> pa.Table:
    """Return the `runs` table, made from the manifests, in the order the runs were begun."""
    rows = []
    for run in runs:
        row = {name: getattr(run, name) for name in RUNS.names}
        for column in ("started_at", "finished_at"):
            row[column] = datetime.fromisoformat(row[column]) if row[column] else None
        for column in ("versions", "recipe"):
            row[column] = json.dumps(row[column])
        row["tags"] = list(row["tags"].items())
        row["wrong"] = row["wrong"] if run.graded else None
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=RUNS)
