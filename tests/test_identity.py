"""Run references: an id, a prefix, a name, latest, latest~N."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.errors import AuditError, NotFound, UsageError
from audit.identity import check_run_name, new_run_id, resolve_run, visit_seed
from audit.store.views import MACROS


@dataclass(frozen=True)
class Row:
    run_id: str
    name: str | None
    status: str


_IDS = st.from_regex(r"[a-c][0-9a-c]{2,5}", fullmatch=True)
_ROWS = st.lists(
    st.builds(
        Row,
        _IDS,
        st.none() | st.sampled_from(["base", "try", "aa"]),
        st.sampled_from(["complete", "failed", "running"]),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda row: row.run_id,
)


@given(_ROWS)
def test_an_id_always_means_its_own_run_unless_it_is_a_newer_runs_name(rows: list[Row]) -> None:
    for row in rows:
        if all(other.name != row.run_id for other in rows):
            assert resolve_run(row.run_id, rows) == row.run_id


@given(_ROWS)
def test_a_name_means_the_newest_run_of_that_name(rows: list[Row]) -> None:
    for row in rows:
        if row.name and all(other.run_id != row.name for other in rows):
            assert resolve_run(row.name, rows) == [r.run_id for r in rows if r.name == row.name][-1]


@given(_ROWS, st.integers(0, 8))
def test_latest_counts_complete_runs_back(rows: list[Row], back: int) -> None:
    complete = [row.run_id for row in rows if row.status == "complete"]
    if back < len(complete):
        assert resolve_run(f"latest~{back}", rows) == complete[-1 - back]
        assert resolve_run(None, rows) == resolve_run("latest", rows) == resolve_run("latest~0", rows)
    else:
        with pytest.raises(NotFound):
            resolve_run(f"latest~{back}", rows)


@given(_ROWS, _IDS.flatmap(lambda text: st.integers(1, len(text)).map(lambda n: text[:n])))
def test_a_prefix_means_one_run_or_is_refused(rows: list[Row], prefix: str) -> None:
    found = [row.run_id for row in rows if row.run_id.startswith(prefix)]
    if any(prefix in (row.run_id, row.name) for row in rows):
        return
    if len(found) == 1:
        assert resolve_run(prefix, rows) == found[0]
    else:
        with pytest.raises(UsageError if found else NotFound):
            resolve_run(prefix, rows)


@given(_ROWS, st.text(max_size=12))
def test_any_text_gives_a_run_or_an_error_with_a_sentence(rows: list[Row], text: str) -> None:
    try:
        assert resolve_run(text, rows) in {row.run_id for row in rows}
    except AuditError as error:
        if not error.message:
            pytest.fail("an error without a sentence")


_REFERENCES = _IDS | st.sampled_from(["base", "aa", "a", "b", "latest", "latest~0", "latest~1", "latest~9", "latest~"])


@given(_ROWS, _REFERENCES)
def test_the_macro_of_sql_means_the_same_run(sql: duckdb.DuckDBPyConnection, rows: list[Row], reference: str) -> None:
    sql.execute("DELETE FROM runs")
    values = [(row.run_id, row.name, row.status, number) for number, row in enumerate(rows)]
    sql.executemany("INSERT INTO runs VALUES (?, ?, ?, ?)", values)
    try:
        expected = resolve_run(reference, rows)
    except AuditError:
        expected = None
    assert sql.execute("SELECT run_of(?)", [reference]).fetchone() == (expected,)


@pytest.fixture(scope="module")
def sql() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as connection:
        connection.execute("CREATE TABLE runs (run_id VARCHAR, name VARCHAR, status VARCHAR, sequence INT)")
        connection.execute(f"CREATE MACRO run_of(reference) AS {MACROS['run_of(reference)']}")
        yield connection


@given(st.text(max_size=30))
def test_a_name_that_is_allowed_can_be_typed_again(name: str) -> None:
    try:
        assert check_run_name(name) == name
    except UsageError:
        return
    assert resolve_run(name, [Row("20260101-000000-abcdef", name, "failed")]) == "20260101-000000-abcdef"


def test_an_empty_store_has_no_latest() -> None:
    with pytest.raises(NotFound, match="no run"):
        resolve_run(None, [])


def test_ids_differ_and_sort_by_time() -> None:
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    assert len({new_run_id(early) for _ in range(500)}) > 495
    assert new_run_id(early) < new_run_id(late)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6), st.integers(0, 10**9))
def test_a_visits_seed_is_the_same_everywhere_and_fits_every_generator(seed: int, epoch: int, index: int) -> None:
    value = visit_seed(seed, epoch, index)
    assert value == visit_seed(seed, epoch, index)
    assert 0 <= value < 2**63
    assert value != visit_seed(seed, epoch, index + 1)
