"""Queries that try to leave the store: none writes, reads another file, or changes what others see."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

from audit.errors import AuditError
from audit.store.read.reader import Reader
from bench.campaign.stores import make_fresh, write_run
from bench.campaign.trial import Trial

GOAL = 1_000
COUNTS = "SQL escapes"
_SECRET = "canary-71d2"

_STATEMENTS = (
    *(
        "COPY (SELECT 1) TO '{out}'",
        "COPY samples TO '{out}' (FORMAT {format})",
        "EXPORT DATABASE '{out}'",
        "LOAD '{out}'",
    ),
    *(
        "ATTACH '{out}' AS x",
        "ATTACH '{out}' AS x (TYPE {format})",
        "IMPORT DATABASE '{folder}'",
        "INSTALL {extension}",
    ),
    *("LOAD {extension}", "SET {setting} = {value}", "SET GLOBAL {setting} = {value}", "RESET {setting}", "USE system"),
    *("PRAGMA {setting} = '{out}'", "CREATE TABLE t AS SELECT 1", "CREATE OR REPLACE VIEW samples AS SELECT 1"),
    *(
        "CREATE MACRO f() AS 1",
        "DROP VIEW samples",
        "DELETE FROM samples",
        "UPDATE samples SET index = 7",
        "CHECKPOINT",
    ),
    *("INSERT INTO samples SELECT * FROM samples", "CREATE SECRET (TYPE s3, KEY_ID 'a', SECRET 'b')", "VACUUM"),
    "CREATE OR REPLACE FUNCTION f() AS (SELECT content FROM read_text('{canary}'))",
)
_READS = (
    *(
        "read_text('{canary}')",
        "read_csv('{canary}')",
        "read_csv_auto('{canary}')",
        "read_json('{canary}')",
        "'{canary}'",
    ),
    *("read_blob('{canary}')", "glob('{folder}/*')", "parquet_metadata('{canary}')", "parquet_scan('{folder}/**')"),
    *(
        "read_parquet('audit://../../{canary}')",
        "read_text('audit://samples/../../../../{canary}')",
        "sniff_csv('{canary}')",
    ),
    *("read_text('file://{canary}')", "read_text('/proc/self/environ')", "read_text('{stray}')", "'{stray}'"),
    *(
        "read_duckdb('{canary}')",
        "sqlite_scan('{canary}', 't')",
        "query('COPY (SELECT 1) TO ''{out}''')",
        "query_table('{canary}')",
    ),
)
_WRAPPERS_OF_QUERIES = (
    *(
        "{q}",
        "WITH x AS ({q}) SELECT 1",
        "EXPLAIN ANALYZE {q}",
        "SELECT * FROM ({q})",
        "SELECT 1; {q}",
        "/* x */ {q} -- y",
    ),
    *(
        "PREPARE p AS {q}; EXECUTE p",
        "SELECT (SELECT count(*) FROM ({q}))",
        "FROM samples WHERE index IN ({q})",
        "({q})",
    ),
    *(
        "BEGIN; {q}; COMMIT",
        "WITH RECURSIVE x AS ({q}) FROM x",
        "SELECT 1 UNION ALL ({q})",
        "PIVOT ({q}) ON 1",
        "CALL {q}",
    ),
)
_SETTINGS = (
    *(
        "enable_external_access",
        "lock_configuration",
        "temp_directory",
        "allowed_directories",
        "allowed_paths",
        "home_directory",
    ),
    *(
        "autoload_known_extensions",
        "autoinstall_known_extensions",
        "allow_unsigned_extensions",
        "profiling_output",
        "log_query_path",
    ),
    *(
        "custom_extension_repository",
        "extension_directory",
        "python_enable_replacements",
        "secret_directory",
        "memory_limit",
    ),
)


def run(trial: Trial) -> None:
    place = make_fresh(trial.folder / "s")
    write_run(place)
    outside = make_fresh(trial.folder / "outside")
    canary, stray = outside / "canary.txt", place / "runs" / "stray.parquet"
    canary.write_text(_SECRET)
    stray.write_bytes((next(place.rglob("samples/*.parquet"))).read_bytes())
    before = _digest(trial.folder)
    with Reader(str(place)) as reader:
        whole = reader.sql("FROM samples ORDER BY ALL").fetchall()
        while trial.more():
            query = _query(trial.chance, outside, canary, stray)
            try:
                answer = str(reader.sql(query).fetchall())
                trial.counts["answered"] += 1
                if _SECRET in answer:
                    trial.fail(f"it read another file: {query}")
            except AuditError:
                trial.counts["refused"] += 1
            except Exception as error:  # anything but a sentence is a fault
                trial.fail(f"{type(error).__name__}: {error}: {query}")
            if _digest(trial.folder) != before:
                trial.fail(f"it wrote: {query}")
                before = _digest(trial.folder)
            trial.tried += 1
        if reader.sql("FROM samples ORDER BY ALL").fetchall() != whole:
            trial.fail("the answers to others have changed")


def _query(chance: random.Random, outside: Path, canary: Path, stray: Path) -> str:
    inner = chance.choice(_STATEMENTS) if chance.random() < 0.5 else f"FROM {chance.choice(_READS)}"
    words = {
        "out": str(outside / f"new{chance.randrange(9)}"),
        "folder": str(outside),
        "canary": str(canary),
        "stray": str(stray),
        "format": chance.choice(("parquet", "csv", "json", "sqlite", "duckdb")),
        "extension": chance.choice(("httpfs", "json", "sqlite", "spatial", "ducklake")),
        "setting": chance.choice(_SETTINGS),
        "value": chance.choice(("true", "false", f"'{outside}'", "['/']", "'99GB'")),
    }
    return chance.choice(_WRAPPERS_OF_QUERIES).format(q=inner.format(**words))


def _digest(folder: Path) -> str:
    found = hashlib.sha256()
    for at, folders, names in sorted(os.walk(folder)):
        found.update(repr((at, sorted(folders))).encode())
        for name in sorted(names):
            status = os.stat(os.path.join(at, name))
            found.update(f"{name} {status.st_size} {status.st_mtime_ns}".encode())
    return found.hexdigest()
