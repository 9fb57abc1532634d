"""A query that nobody has read reaches no file, changes nothing, and ends."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from webstores import begin, write_samples

from audit.errors import AuditError, QueryError
from audit.store.read.reader import Reader
from audit.store.sandbox import landlock
from audit.store.sandbox.sandbox import Sandbox
from audit.web.replays import Replays
from audit.web.warm_process import WarmProcess

pytestmark = pytest.mark.workers

SECRET = "canary-5f1d0c"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("jail") / "lineage"
    writer = begin(place, "one", classes=["a", "b"])
    write_samples(writer, [{"label": n % 2, "predicted": n % 3 % 2, "label_name": "ab"[n % 2]} for n in range(50)])
    writer.finish("complete")
    return place


@pytest.fixture(scope="module")
def sandbox(place: Path) -> Iterator[Sandbox]:
    with Sandbox(str(place), seconds=8) as made:
        yield made


@pytest.fixture(scope="module")
def unlocked(place: Path) -> Iterator[Sandbox]:
    """As on a kernel without Landlock."""
    with Sandbox(str(place), seconds=8, landlock=False) as made:
        yield made


def digest(place: Path) -> str:
    """Every file of a store: name, bytes, and that there is no other."""
    whole = hashlib.sha256()
    for path in sorted(place.rglob("*")):
        whole.update(str(path.relative_to(place)).encode())
        if path.is_file():
            whole.update(path.read_bytes())
    return whole.hexdigest()


#: Each is tried as it is and in the disguises below. {out} is a file that must not appear, {canary} one that must not be read.
ESCAPES = [
    "COPY (SELECT 1) TO '{out}'",
    "COPY samples TO '{out}' (FORMAT parquet)",
    "COPY (SELECT 1) TO '{out}' (FORMAT csv, OVERWRITE_OR_IGNORE)",
    "COPY (SELECT * FROM read_text('{canary}')) TO '{out}'",
    "COPY samples FROM '{canary}'",
    "COPY samples TO '{store}/runs/evil.parquet'",
    "COPY (SELECT 1 AS a) TO '{folder}' (FORMAT parquet, PARTITION_BY (a), OVERWRITE)",
    "EXPORT DATABASE '{folder}/export'",
    "IMPORT DATABASE '{folder}'",
    "ATTACH '{out}' AS other",
    "ATTACH '{canary}' AS other (READ_ONLY)",
    "ATTACH ':memory:' AS other",
    "CREATE TABLE t AS SELECT * FROM read_text('{canary}')",
    "CREATE OR REPLACE VIEW samples AS SELECT 1",
    "DROP VIEW samples",
    "DROP VIEW lineage CASCADE",
    "DELETE FROM runs",
    "UPDATE runs SET name = 'x'",
    "INSERT INTO runs SELECT * FROM runs",
    "TRUNCATE runs",
    "ALTER TABLE runs RENAME TO r",
    "INSTALL httpfs",
    "LOAD httpfs",
    "INSTALL '{canary}'",
    "LOAD '{canary}'",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "RESET enable_external_access",
    "SET allowed_directories = ['/']",
    "SET temp_directory = '{folder}'",
    "SET home_directory = '{folder}'",
    "SET extension_directory = '{folder}'",
    "SET secret_directory = '{folder}'",
    "SET log_query_path = '{out}'",
    "PRAGMA enable_profiling = 'json'",
    "PRAGMA profile_output = '{out}'",
    "SET profiling_output = '{out}'",
    "PRAGMA database_list",
    "CREATE SECRET s (TYPE http, BEARER_TOKEN 'x')",
    "CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "VACUUM",
    "CALL pragma_version()",
    "SELECT * FROM read_text('{canary}')",
    "SELECT * FROM read_blob('{canary}')",
    "SELECT * FROM read_csv('{canary}', header = false)",
    "SELECT * FROM read_csv_auto('{canary}')",
    "SELECT * FROM read_json('{canary}')",
    "SELECT * FROM read_ndjson_objects('{canary}')",
    "SELECT * FROM read_parquet('{canary}')",
    "SELECT * FROM read_parquet('{store}/runs/*/samples/*.parquet')",
    "SELECT * FROM parquet_metadata('{store}/runs/*/samples/*.parquet')",
    "SELECT * FROM sniff_csv('{canary}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM '{canary}'",
    "SELECT * FROM '{canary}.csv'",
    "SELECT * FROM read_text('/proc/self/environ')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_text('file://{canary}')",
    "SELECT * FROM read_text('audit://../../../../{canary}')",
    "SELECT * FROM read_text('audit://{canary}')",
    "SELECT * FROM read_blob('{store}/audit.json')",
    "SELECT * FROM read_text('http://127.0.0.1:{port}/')",
    "SELECT * FROM read_csv('http://127.0.0.1:{port}/{secret}')",
    "SELECT getenv('HOME'), getenv('AUDIT_CANARY')",
    "SELECT * FROM sqlite_scan('{canary}', 't')",
    "SELECT * FROM postgres_scan('host=127.0.0.1', 'a', 'b')",
    "SELECT * FROM os",
    "SELECT * FROM environ",
    "FROM query('COPY (SELECT 1) TO ''{out}''')",
    "FROM query('SELECT * FROM read_text(''{canary}'')')",
    "FROM query_table('{canary}')",
    "SELECT write_log('x', log_type := 'FileSystem')",
    "SELECT * FROM duckdb_secrets()",
]
DISGUISES = [
    "{}",
    "WITH x AS ({}) SELECT 1",
    "WITH x AS MATERIALIZED ({}) FROM x",
    "EXPLAIN ANALYZE {}",
    "PREPARE p AS {}; EXECUTE p",
    "SELECT 1; {}",
    "{}; SELECT 1",
    "FROM query($q${}$q$)",
    "SELECT * FROM ({})",
    "/* SELECT */ {} -- SELECT",
]


class Canaries:
    """A file that must not be read, a place that must stay empty, a server that must not be asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "out"
        self.folder.mkdir()
        self.file = folder / "canary"
        self.file.write_text(SECRET)
        (folder / "canary.csv").write_text(SECRET)
        self.asked: list[str] = []
        canaries = self

        class Listener(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                canaries.asked.append(self.path)
                self.send_response(404)
                self.end_headers()

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def fill(self, text: str, store: Path) -> str:
        for name, value in {
            "{out}": self.folder / "evil",
            "{folder}": self.folder,
            "{canary}": self.file,
            "{store}": store,
            "{port}": self.server.server_address[1],
            "{secret}": "x",
        }.items():
            text = text.replace(name, str(value))
        return text


@pytest.fixture(scope="module")
def canaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canaries]:
    os.environ["AUDIT_CANARY"] = SECRET
    made = Canaries(tmp_path_factory.mktemp("canaries"))
    yield made
    made.server.shutdown()
    del os.environ["AUDIT_CANARY"]


def attack(sandbox: Sandbox, place: Path, canaries: Canaries, disguise: str, every: int = 1) -> None:
    """Try every n-th escape; which ones depends on the disguise, so that each is tried in several."""
    before = digest(place)
    step = 1 if os.environ.get("AUDIT_EXHAUSTIVE") else every
    for escape in ESCAPES[DISGUISES.index(disguise) % step :: step]:
        query = disguise.replace("{}", canaries.fill(escape, place))
        try:
            said = str(sandbox.query(query, limit=20).rows)
        except QueryError as error:
            said = str(error)
        assert SECRET not in said, query
    assert digest(place) == before
    assert list(canaries.folder.iterdir()) == []
    assert canaries.asked == []


@pytest.mark.parametrize("disguise", DISGUISES)
def test_no_escape(sandbox: Sandbox, place: Path, canaries: Canaries, disguise: str) -> None:
    attack(sandbox, place, canaries, disguise, every=1 if disguise == "{}" else 5)


@pytest.mark.parametrize("disguise", DISGUISES[:4])
def test_no_escape_without_landlock(unlocked: Sandbox, place: Path, canaries: Canaries, disguise: str) -> None:
    attack(unlocked, place, canaries, disguise, every=6)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_no_escape_through_a_file(sandbox: Sandbox, place: Path, canaries: Canaries, form: str) -> None:
    before = digest(place)
    for escape in ESCAPES[:12]:
        with pytest.raises(QueryError):
            sandbox.query(canaries.fill(escape, place), form=form)  # type: ignore[arg-type]
    assert digest(place) == before
    assert list(canaries.folder.iterdir()) == []


def test_the_kernel_holds_what_duckdb_would_let_through(place: Path, tmp_path: Path) -> None:
    """Even Python code in the child could read or write nothing but the store: checked in a forked child of our own."""
    if not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    (tmp_path / "canary").write_text(SECRET)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        landlock.restrict([str(place)])
        allowed = []
        for path, mode in (
            (tmp_path / "canary", "r"),
            (tmp_path / "new", "w"),
            (place / "new", "w"),
            (place / "audit.json", "r"),
        ):
            try:
                with open(path, mode):
                    allowed.append(path.name)
            except PermissionError:
                pass
        try:
            os.kill(os.getppid(), 0)
            allowed.append("signal")
        except PermissionError:
            pass
        os.write(writing, ",".join(allowed).encode())
        os._exit(0)
    os.close(writing)
    said = os.read(reading, 1000).decode()
    os.waitpid(pid, 0)
    assert said.split(",") == ["audit.json"] or (landlock.abi() < 6 and said.split(",") == ["audit.json", "signal"])


def test_answers_as_the_store_does(sandbox: Sandbox, place: Path) -> None:
    query = "SELECT index, label, correct, loss FROM lineage ORDER BY index"
    with Reader(str(place)) as reader:
        expected = [list(row) for row in reader.sql(query).fetchall()]
    assert sandbox.query(query).rows == expected
    assert sandbox.query(query).confined == landlock.abi()


@pytest.mark.parametrize(
    "query", ["FROM runs", "SHOW TABLES", "DESCRIBE samples", "SUMMARIZE predictions", "EXPLAIN FROM samples"]
)
def test_ordinary_questions(sandbox: Sandbox, query: str) -> None:
    assert sandbox.query(query).rows


def test_every_type_comes_back(sandbox: Sandbox) -> None:
    answer = sandbox.query(
        "SELECT now(), current_date, uuid(), 1.5::DECIMAL(9, 2), INTERVAL 3 DAY, MAP {'a': 1}, {'x': [1]}, 'x'::BLOB, "
        "TIME '12:00', 'nan'::FLOAT, 'inf'::DOUBLE, 170141183460469231731687303715884105727::HUGEINT, NULL, "
        "TIMESTAMPTZ '2020-01-01 00:00:00+09'"
    )
    assert answer.rows[0][9:11] == [None, None]
    assert answer.rows[0][13] == "2019-12-31T15:00:00+00:00"


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60))
def test_any_text_is_answered(sandbox: Sandbox, text: str) -> None:
    """Whatever is typed, there is an answer or a sentence."""
    with contextlib.suppress(QueryError):
        assert sandbox.query(text, seconds=5).confined == landlock.abi()


HUNGRY = [
    "SELECT count(*) FROM range(100000000000) a, range(100000) b",
    "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t",
    "SELECT length(repeat('x', 4000000000) || repeat('y', 4000000000))",
    "SELECT list(range) FROM range(2000000000)",
]


@pytest.mark.parametrize("query", HUNGRY)
def test_a_hungry_query_ends_by_its_deadline(sandbox: Sandbox, query: str) -> None:
    begun = time.monotonic()
    with pytest.raises(QueryError):
        sandbox.query(query, seconds=0.7)
    assert time.monotonic() - begun < 60, "the query itself would take hours"
    assert sandbox.query("SELECT 42").rows == [[42]]


def test_nothing_is_left_running(place: Path) -> None:
    with Sandbox(str(place), seconds=1) as made:
        with pytest.raises(QueryError):
            made.query(HUNGRY[0])
        assert made._fork_server is not None
        fork_server = psutil.Process(made._fork_server.pid)
        born = [fork_server, *fork_server.children()]
    assert psutil.wait_procs(born, timeout=60)[1] == []


def test_a_killed_fork_server_is_replaced(place: Path) -> None:
    with Sandbox(str(place)) as made:
        assert made.query("SELECT 1").rows == [[1]]
        assert made._fork_server is not None
        made._fork_server.kill()
        made._fork_server.wait()
        assert made.query("SELECT 2").rows == [[2]]


def test_a_new_run_is_seen(tmp_path: Path) -> None:
    place = tmp_path / "lineage"
    begin(place, "first").finish("complete")
    with Sandbox(f"file://{place}") as made:
        assert made.query("SELECT name FROM runs").rows == [["first"]]
        begin(place, "second").finish("complete")
        assert made.query("SELECT name FROM runs ORDER BY sequence").rows == [["first"], ["second"]]


def test_limits_and_files(sandbox: Sandbox) -> None:
    answer = sandbox.query("FROM samples", limit=10)
    assert len(answer.rows) == 10
    assert answer.more
    assert sandbox.query("SELECT 1 AS a", form="csv").body == b"a\r\n1\r\n"
    assert sandbox.query("SELECT 1 AS a", form="parquet").body[:4] == b"PAR1"


def test_cells_that_a_spreadsheet_would_compute_are_defused(sandbox: Sandbox) -> None:
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "plain"]
    query = f"SELECT unnest({texts!r}) AS a, -1.5 AS b"
    lines = sandbox.query(query, form="csv").body.decode().replace("\r\n", "\n").splitlines()
    assert lines[1:] == ["'=1+1,-1.5", "'+1,-1.5", "'-1,-1.5", "'@SUM(A1),-1.5", "plain,-1.5"]


def test_a_spare_process_that_died_costs_nothing(sandbox: Sandbox) -> None:
    """Killed from outside while it waits for a query: the next query is answered."""
    assert sandbox.query("SELECT 1").rows == [[1]]
    for _ in range(5):
        assert sandbox._fork_server is not None
        fork_server = sandbox._fork_server.pid
        children = Path(f"/proc/{fork_server}/task/{fork_server}/children").read_text().split()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        assert sandbox.query("SELECT 2").rows == [[2]]


def test_the_process_imports_nothing_from_the_working_directory(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m` would put the directory first: a folder from a stranger would be executed by looking at its store."""
    for name in ("json", "duckdb", "pyarrow", "audit"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'RAN')!r}, 'w').write('ran')")
    monkeypatch.chdir(tmp_path)
    with Sandbox(str(place)) as made:
        assert made.query("SELECT 42").rows == [[42]]
    assert not (tmp_path / "RAN").exists()
    process = WarmProcess()
    try:
        with pytest.raises(AuditError, match="missing"):
            Replays(str(tmp_path / "missing"), process).replay("latest", 0, 0, 0)
    finally:
        process.close()
    assert not (tmp_path / "RAN").exists()
