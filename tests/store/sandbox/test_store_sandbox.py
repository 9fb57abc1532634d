"""SQL over a store cannot write, cannot leave the store and cannot look at what no manifest lists.

Each attempt runs through the library. Canaries stand outside the store and beside its parts; afterwards every byte
below the store and the working directory must be what it was, and no answer may hold a canary's text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_cases import record, tree_digest

import audit
from audit.errors import AuditError, QueryError

SECRET = "canary-5c0a1e"

#: Placeholders: {out} a new file outside, {canary} a text file outside, {part} the path of a committed part,
#: {name} the name that DuckDB knows it by, {store} the store's folder, {stray} a Parquet file there that is not listed.
ATTEMPTS = [
    "COPY (SELECT 1) TO '{out}'",
    "COPY predictions TO '{out}' (FORMAT parquet)",
    "COPY (SELECT 1) TO 'audit://predictions/x.parquet'",
    "COPY (SELECT 1) TO '{name}' (FORMAT parquet)",
    "COPY (SELECT 1 AS a) TO 'audit://x' (FORMAT parquet, PARTITION_BY (a), OVERWRITE)",
    "COPY (SELECT 1) TO '{store}/evil.parquet'",
    "COPY (SELECT 1) TO '/dev/stdout'",
    "COPY runs FROM '{canary}'",
    "EXPORT DATABASE '{out}'",
    "EXPORT DATABASE 'audit://out'",
    "IMPORT DATABASE '{store}'",
    "ATTACH '{out}' AS x",
    "ATTACH 'audit://x.db' AS x",
    "ATTACH '{out}' AS x (TYPE sqlite)",
    "ATTACH ':memory:' AS x",
    "DETACH memory",
    "USE system",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{out}'",
    "FORCE INSTALL spatial FROM community",
    "UPDATE EXTENSIONS",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "SET temp_directory = '{store}'",
    "SET GLOBAL allowed_directories = ['/']",
    "RESET enable_external_access",
    "PRAGMA enable_profiling = 'json'",
    "PRAGMA profiling_output = '{out}'",
    "PRAGMA database_list",
    "CREATE TABLE t AS SELECT 1",
    "CREATE OR REPLACE VIEW predictions AS SELECT 1",
    "CREATE TEMP TABLE t AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "CREATE SECRET (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "CREATE PERSISTENT SECRET p (TYPE http)",
    "CREATE SCHEMA s",
    "CREATE SEQUENCE q",
    "INSERT INTO runs SELECT * FROM runs",
    "UPDATE runs SET status = 'complete'",
    "DELETE FROM runs",
    "TRUNCATE runs",
    "DROP TABLE runs",
    "DROP VIEW predictions",
    "ALTER TABLE runs ADD COLUMN x INT",
    "CALL pragma_version()",
    "CALL enable_logging('QueryLog', storage = 'file', storage_path = '{out}')",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN TRANSACTION",
    "PREPARE p AS COPY (SELECT 1) TO '{out}'",
    "PREPARE p AS SELECT 1; EXECUTE p",
    "EXPLAIN COPY (SELECT 1) TO '{out}'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{out}'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{name}'",
    "EXPLAIN ANALYZE DELETE FROM runs",
    "EXPLAIN ANALYZE CREATE OR REPLACE VIEW predictions AS SELECT 1",
    "EXPLAIN ANALYZE DROP VIEW predictions",
    "EXPLAIN ANALYZE CREATE TEMP VIEW predictions AS SELECT 1",
    "WITH x AS (INSERT INTO runs FROM runs RETURNING *) FROM x",
    "ROLLBACK",
    "COMMIT; DELETE FROM runs",
    "WITH x AS (COPY (SELECT 1) TO '{out}') SELECT 1",
    "WITH x AS (COPY (SELECT 1) TO 'audit://predictions/y') SELECT 1",
    "WITH x AS (DELETE FROM runs RETURNING *) FROM x",
    "SELECT 1; COPY (SELECT 1) TO '{out}'",
    "SELECT 1; DROP TABLE runs",
    "FROM '{canary}'",
    "FROM read_text('{canary}')",
    "FROM read_blob('{canary}')",
    "FROM read_csv('{canary}', header = false)",
    "FROM read_csv_auto('{canary}')",
    "FROM read_json('{canary}')",
    "FROM read_ndjson_objects('{canary}')",
    "FROM sniff_csv('{canary}')",
    "FROM glob('{store}/**')",
    "FROM glob('/*')",
    "FROM glob('audit://**')",
    "FROM read_text('/proc/self/environ')",
    "FROM read_text('file://{canary}')",
    "FROM read_text('audit://../../{canary}')",
    "FROM read_text('audit://{canary}')",
    "FROM read_text('audit:{canary}')",
    "FROM read_text('audit://predictions/../../../{canary}')",
    "FROM read_text('{name}/../../{canary}')",
    "FROM read_text('AUDIT://{canary}')",
    "FROM read_parquet('{part}')",
    "FROM read_parquet('{stray}')",
    "FROM read_parquet('{store}/runs/*/predictions/*.parquet')",
    "FROM read_parquet('audit://predictions/{stray}')",
    "FROM '{part}'",
    "FROM parquet_metadata('{part}')",
    "FROM parquet_schema('{stray}')",
    "FROM parquet_kv_metadata('{part}')",
    "FROM read_parquet('http://127.0.0.1:9/x.parquet')",
    "FROM read_parquet('https://example.invalid/x.parquet')",
    "FROM read_parquet('s3://bucket/x.parquet')",
    "FROM 'https://example.invalid/x.csv'",
    "SELECT getenv('AUDIT_CANARY')",
    "FROM query('COPY (SELECT 1) TO ''{out}''')",
    "FROM query('FROM read_text(''{canary}'')')",
    "FROM query_table('{canary}')",
    "FROM query_table(['{part}'])",
    "FROM canary_variable",
    "SELECT * FROM canary_frame",
    "FROM duckdb_secrets()",
    "FROM which_secret('s3://x', 's3')",
    "SELECT current_setting('secret_directory')",
    "FROM sqlite_scan('{canary}', 't')",
    "FROM postgres_scan('host=127.0.0.1', 'public', 't')",
    "FROM iceberg_scan('{store}')",
    "FROM delta_scan('{store}')",
    "SELECT write_log('x', level := 'ERROR')",
    "SET VARIABLE x = (SELECT content FROM read_text('{canary}'))",
    "PIVOT (FROM read_text('{canary}')) ON filename USING first(content)",
    "SUMMARIZE FROM read_text('{canary}')",
    "DESCRIBE FROM read_parquet('{part}')",
    "COMMENT ON TABLE runs IS 'x'",
    "ANALYZE",
    ".shell echo hi",
]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("ground")
    place = folder / "lineage"
    run = record(place, samples=10)
    record(place, samples=5, status="failed")
    canary = folder / "canary.csv"
    canary.write_text(f"{SECRET},{SECRET}\n{SECRET},2\n")
    [part, *_] = sorted(place.glob(f"runs/{run.run_id}/predictions/*.parquet"))
    stray = part.parent / "stray.parquet"
    stray.write_bytes(part.read_bytes())
    os.environ["AUDIT_CANARY"] = SECRET
    with audit.open(place) as store:
        numbers = [n for n, item in enumerate(store.reader.manifest(run.run_id).parts) if item.table == "predictions"]
    try:
        yield {
            "out": str(folder / "out"),
            "canary": str(canary),
            "part": str(part),
            "name": f"audit://predictions/run_id={run.run_id}/{numbers[0]}.parquet",
            "store": str(place),
            "stray": str(stray),
            "folder": str(folder),
        }
    finally:
        del os.environ["AUDIT_CANARY"]


def everything(answer: Any) -> str:
    """All that a query says, in every way it can be fetched."""
    return repr(
        [answer.fetchall(), answer.dicts(), answer.arrow().to_pylist(), [b.to_pylist() for b in answer.arrow_batches()]]
    )


@pytest.mark.slow
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_no_attempt_writes_or_leaves_the_store(
    attempt: str, ground: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(ground["folder"])
    monkeypatch.chdir(folder)
    canary_variable = canary_frame = __import__("pyarrow").table({"a": [SECRET]})
    assert len(canary_variable) == len(canary_frame) == 1
    before = tree_digest(folder)
    with audit.open(ground["store"]) as store:
        try:
            said = everything(store.sql(attempt.format_map(ground)))
        except QueryError:
            said = ""
        else:
            assert SECRET not in said
            # What is not refused finds nothing, or speaks of the session alone.
            assert said == "[[], [], [], []]" or attempt in HARMLESS, f"answered: {said[:300]}"
        assert store.sql("SELECT count(*) FROM predictions").fetchone() == (15,)
        assert store.sql("SELECT count(*) FROM runs WHERE status = 'complete'").fetchone() == (1,)
    assert tree_digest(folder) == before


#: Answered, and harmless: they see nothing but the session itself.
HARMLESS = {
    "FROM duckdb_secrets()",
    "FROM which_secret('s3://x', 's3')",
    "SELECT current_setting('secret_directory')",
    "FROM glob('audit://**')",
    "EXPLAIN ANALYZE CREATE TEMP VIEW predictions AS SELECT 1",
    "SELECT write_log('x', level := 'ERROR')",
}


def test_the_corpus_is_large_enough() -> None:
    assert len(set(ATTEMPTS)) == len(ATTEMPTS) >= 60


def test_even_without_the_look_at_the_statement_nothing_is_written(
    ground: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement type is only for a friendly refusal: the connection itself holds."""
    folder = Path(ground["folder"])
    monkeypatch.chdir(folder)
    before = tree_digest(folder)
    with audit.open(ground["store"]) as store:
        for attempt in ATTEMPTS:
            connection = store.reader.session(None).connection.cursor()
            query = attempt.format_map(ground)
            try:
                said = repr(connection.execute(query).fetchall())
            except Exception:
                continue
            assert SECRET not in said, attempt
    assert tree_digest(folder) == before


def test_queries_that_only_read_are_all_allowed(ground: dict[str, str]) -> None:
    with audit.open(ground["store"]) as store:
        for query in (
            "FROM wrong_predictions",
            "SELECT 1;",
            "EXPLAIN FROM lineage",
            "EXPLAIN ANALYZE SELECT count(*) FROM lineage",
            "DESCRIBE lineage",
            "SHOW TABLES",
            "SUMMARIZE predictions",
            "WITH x AS (FROM predictions) SELECT count(*) FROM x",
            "PIVOT predictions ON label USING count(*) GROUP BY correct",
            "FROM query('SELECT 1')",
            "VALUES (1), (2)",
            "SELECT list_transform(logits, lambda x: x + 1) FROM predictions",
        ):
            assert store.sql(query).fetchall() is not None, query


def test_a_query_may_be_given_parameters_and_never_needs_quoting(ground: dict[str, str]) -> None:
    with audit.open(ground["store"]) as store:
        answer = store.sql("SELECT count(*) FROM samples WHERE source = ?", parameters=["'; DROP TABLE runs; --"])
        assert answer.fetchone() == (0,)
        with pytest.raises(AuditError):
            store.sql("")
        with pytest.raises(AuditError, match="2 queries"):
            store.sql("SELECT 1; SELECT 2")
        with pytest.raises(QueryError, match="nowhere"):
            store.sql("FROM nowhere").fetchall()
