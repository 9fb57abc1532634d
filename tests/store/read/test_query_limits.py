"""Queries end: by a timeout, and by a limit of memory."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from store_cases import record

import audit
from audit.cli.main import cli
from audit.config import half_of_memory, parse_bytes
from audit.errors import QueryError, UsageError
from audit.store.read.relation import Relation

ENDLESS = "SELECT count(*) FROM range(100000000000) a, range(100000) b"
HUNGRY = "SELECT list(range) FROM range(2000000000)"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("limits")
    record(place, samples=9)
    return place


def fetched(answer: Relation, fetch: str) -> Any:
    found = getattr(answer, fetch)
    return list(found()) if callable(found) else found


@pytest.mark.parametrize("fetch", ["fetchall", "fetchone", "dicts", "df", "arrow", "columns", "batches"])
def test_a_fetch_is_stopped_after_its_timeout(place: Path, fetch: str) -> None:
    with audit.open(place) as store:
        begun = time.monotonic()
        with pytest.raises(QueryError, match=r"longer than 0\.2 seconds"):
            fetched(store.sql(ENDLESS, timeout=0.2), fetch)
        assert time.monotonic() - begun < 60, "the query itself would take years"
        assert store.sql("SELECT count(*) FROM samples", timeout=5).fetchone() == (9,)


def test_memory_is_limited(place: Path) -> None:
    with audit.open(place) as store:
        with pytest.raises(QueryError, match="more memory than it may use"):
            store.sql(HUNGRY, memory_limit="50MB").fetchall()
        shown = store.sql("SELECT current_setting('memory_limit')").fetchone()
    assert shown is not None
    assert parse_bytes(str(shown[0])) == pytest.approx(half_of_memory(), rel=0.06)


def test_the_command_takes_the_limits(place: Path) -> None:
    def ask(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["sql", *words, "--store", str(place)])
        return done.exit_code, done.output

    code, said = ask(ENDLESS, "--timeout", "0.2")
    assert code == 1
    assert "longer than 0.2 seconds" in said
    code, said = ask(HUNGRY, "--memory-limit", "50MB")
    assert code == 1
    assert "more memory" in said
    # Memory that DuckDB takes beside its buffers.
    code, said = ask("SELECT length(string_agg(repeat('x', 100000000), '')) FROM range(40)", "--memory-limit", "50MB")
    assert code == 1
    assert "more memory" in said
    assert ask("SELECT 1", "--memory-limit", "much")[0] == 2
    assert ask("SELECT 1", "--timeout", "0")[0] == 2


@pytest.mark.workers
def test_a_command_ends_though_its_query_ignores_the_interrupt() -> None:
    deaf = "import time; from audit.cli import query_limits as limits; limits._GRACE = 0.1\nwith limits.limit_process(None, 0.1): time.sleep(60)"
    done = subprocess.run([sys.executable, "-c", deaf], capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    assert "longer than 0.1 seconds" in done.stderr


@pytest.mark.parametrize(("text", "number"), [("512MB", 512_000_000), ("2GiB", 2**31), ("1000", 1000), ("1.5kb", 1500)])
def test_amounts_of_memory(text: str, number: int) -> None:
    assert parse_bytes(text) == number


@pytest.mark.parametrize("text", ["", "GB", "-1", "0", "1XB", "nan"])
def test_what_is_not_an_amount(text: str) -> None:
    with pytest.raises(UsageError, match="not an amount of memory"):
        parse_bytes(text)
