"""`audit sql` in every form: hostile cells stay cells, NaN is null in JSON; JSON stands alone on stdout."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from store_cases import HOSTILE, record

import audit
from audit.cli.main import cli
from audit.errors import UsageError
from audit.report.results import WRITERS, write_file, write_stream
from audit.store.write.writer import RunWriter

NASTY = (
    "SELECT * FROM (VALUES "
    + ", ".join("(" + str(n) + ", '" + t.replace("'", "''") + "')" for n, t in enumerate(HOSTILE))
    + ") t(n, text)"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sql") / "s"
    record(place, samples=10, name="first")
    record(place, samples=20, name="second")
    return place


Ask = Callable[..., Result]


@pytest.fixture
def ask(place: Path) -> Ask:
    def run(*arguments: str, **options: Any) -> Result:
        return CliRunner().invoke(cli, ["sql", *arguments, "--store", str(place)], **options)

    return run


def test_csv_round_trips(ask: Ask) -> None:
    done = ask(NASTY, "--format", "csv")
    assert done.exit_code == 0
    assert done.stderr == ""
    rows = list(csv.reader(io.StringIO(done.stdout_bytes.decode(), newline="")))
    assert rows[0] == ["n", "text"]
    assert [row[1] for row in rows[1:]] == list(HOSTILE)


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_json_round_trips_and_stands_alone(form: str, ask: Ask) -> None:
    done = ask(NASTY, "--format", form)
    assert done.exit_code == 0
    assert done.stderr == ""
    text = done.stdout_bytes.decode()
    rows = json.loads(text) if form == "json" else [json.loads(line) for line in text.split("\n") if line]
    assert [row["text"] for row in rows] == list(HOSTILE)
    assert ask(NASTY, "--json").stdout == ask(NASTY, "--format", "json").stdout


def test_json_has_no_nan_and_no_duplicate_names_and_keeps_types(ask: Ask) -> None:
    query = """
        SELECT 'nan'::DOUBLE AS a, 'inf'::FLOAT AS b, ['nan'::FLOAT, 1] AS c, NULL AS d, true AS e, '\\xff'::BLOB AS f,
               DATE '2026-01-02' AS g, MAP {'k': 'nan'::DOUBLE} AS h, {'x': 1} AS i,
               12345678901234567890::UBIGINT AS j, 1.5::DECIMAL(4,1) AS k,
               INTERVAL 1 DAY AS l, '00000000-0000-0000-0000-000000000001'::UUID AS m
    """
    [row] = json.loads(ask(query, "--json").stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert row["a"] is row["b"] is row["d"] is None
    assert row["c"] == [None, 1.0]
    assert row["e"] is True
    assert row["f"] == "ff"
    assert row["g"] == "2026-01-02"
    assert row["h"] == {"k": None}
    assert row["i"] == {"x": 1}
    assert row["j"] == 12345678901234567890
    assert row["k"] == 1.5
    assert row["m"].endswith("0001")
    [twice] = json.loads(ask("SELECT 1 AS a, 2 AS a", "--json").stdout)
    assert list(twice.values()) == [1, 2], "a second column of one name must not swallow the first"


def test_empty_answers(ask: Ask) -> None:
    nothing = "FROM lineage WHERE false"
    assert json.loads(ask(nothing, "--json").stdout) == []
    assert ask(nothing, "--format", "jsonl").stdout == ""
    assert ask(nothing, "--format", "csv").stdout.startswith("run_id,epoch,index")
    assert len(ask(nothing, "--format", "markdown").stdout.splitlines()) == 2
    assert "0 rows" in ask(nothing).stdout


def test_markdown_cannot_be_broken_out_of(ask: Ask) -> None:
    done = ask(NASTY, "--format", "markdown")
    lines = done.stdout.splitlines()
    assert len(lines) == len(HOSTILE) + 2
    for line in lines:
        # An even number of backslashes before a pipe would leave it a border.
        borders = [n for n, c in enumerate(line) if c == "|" and (len(line[:n]) - len(line[:n].rstrip("\\"))) % 2 == 0]
        assert len(borders) == 3, line
        assert "<" not in line
        assert "\x1b" not in line


def test_the_table_cannot_move_the_cursor(ask: Ask) -> None:
    done = ask(NASTY)
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    assert "\u202e" not in done.stdout
    assert len(done.stdout.splitlines()) == len(HOSTILE) + 3


def test_column_names_may_be_hostile_too(ask: Ask) -> None:
    query = 'SELECT 1 AS "a\nb", 2 AS "<i>|\x1b[31m"'
    for form in ("table", "markdown"):
        text = ask(query, "--format", form).stdout
        assert "\x1b" not in text
        assert len(text.splitlines()) <= 4
    assert list(json.loads(ask(query, "--json").stdout)[0]) == ["a\nb", "<i>|\x1b[31m"]


def test_run_narrows_and_may_be_repeated(ask: Ask) -> None:
    count = "SELECT count(*) AS n FROM samples"
    assert json.loads(ask(count, "--json").stdout) == [{"n": 30}]
    assert json.loads(ask(count, "--json", "--run", "first").stdout) == [{"n": 10}]
    assert json.loads(ask(count, "--json", "--run", "first", "--run", "latest").stdout) == [{"n": 30}]
    missing = ask(count, "--run", "nobody")
    assert missing.exit_code == 1
    assert missing.stdout == ""
    assert "nobody" in missing.stderr


def test_an_sql_error_is_duckdbs_message_on_stderr(ask: Ask) -> None:
    for query in ("FROM nowhere", "SELECT nothing FROM runs", "SELEC 1", "SELECT 1/'x'", "DROP TABLE runs", ";"):
        done = ask(query, "--json")
        assert done.exit_code == 1, query
        assert done.stderr.startswith("audit: ")
        assert "Traceback" not in done.stderr
        assert done.stdout in ("", "["), query
    assert "nowhere" in ask("FROM nowhere").stderr


def test_a_query_may_come_from_standard_input(ask: Ask) -> None:
    assert json.loads(ask("--json", input="SELECT 1 AS a").stdout) == [{"a": 1}]


@pytest.mark.parametrize("ending", ["parquet", "csv", "json", "jsonl", "md", "txt"])
def test_a_file_is_written_whole(ending: str, ask: Ask, tmp_path: Path) -> None:
    target = tmp_path / f"sub [x] {ending}.{ending}"
    done = ask(NASTY, "-o", str(target))
    assert done.exit_code == 0
    assert done.stdout == ""
    assert str(len(HOSTILE)) in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    if ending == "parquet":
        assert pq.ParquetFile(target).read()["text"].to_pylist() == list(HOSTILE)
    elif ending == "json":
        assert [row["text"] for row in json.loads(target.read_bytes())] == list(HOSTILE)
    elif ending == "csv":
        with open(target, newline="", encoding="utf-8") as file:
            assert [row["text"] for row in csv.DictReader(file)] == list(HOSTILE)


def test_a_failed_query_leaves_an_existing_file_as_it_was(ask: Ask, tmp_path: Path) -> None:
    target = tmp_path / "kept.csv"
    target.write_text("before")
    assert ask("SELECT error('boom')", "-o", str(target)).exit_code == 1
    assert target.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1
    refused = ask("SELECT 1", "-o", str(tmp_path / "no" / "such" / "folder.csv"))
    assert refused.exit_code == 2
    assert "could not be written" in refused.stderr
    other = tmp_path / "kept.csv.part"
    other.write_text("mine")
    assert ask("SELECT 1", "-o", str(target)).exit_code == 0
    assert other.read_text() == "mine"
    assert stat.S_IMODE(target.stat().st_mode) & 0o600 == 0o600


@pytest.mark.slow
@pytest.mark.parametrize("form", WRITERS)
@given(cells=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=4))
@settings(max_examples=examples(15))
def test_any_text_gives_one_row_per_row(form: str, cells: list[str], place: Path) -> None:
    with audit.open(place) as store:
        answer = store.sql("SELECT unnest(?) AS text", parameters=[cells])
        out = io.StringIO()
        assert write_stream(answer, out, form) == len(cells)
    text = out.getvalue()
    if form == "json":
        assert [row["text"] for row in json.loads(text)] == cells
    elif form == "csv":
        found = list(csv.reader(io.StringIO(text, newline="")))
        assert [row[0] if row else "" for row in found[1:]] == cells
    elif form in ("markdown", "table"):
        assert len(text.split("\n")) == len(cells) + (3 if form == "markdown" else 4)


def test_numbers_are_written_in_full_where_a_program_reads(ask: Ask) -> None:
    value = 0.1 + 0.2
    [row] = csv.DictReader(
        io.StringIO(ask(f"SELECT {value!r}::DOUBLE AS x, 'nan'::DOUBLE AS y", "--format", "csv").stdout)
    )
    assert float(row["x"]) == value
    assert math.isnan(float(row["y"]))


@pytest.mark.workers
def test_a_large_answer_is_streamed_to_a_reader_that_leaves(place: Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "audit", "sql", "FROM range(3000000)", "--format", "csv", "--store", str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=os.getcwd()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().strip() == b"range"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


def test_a_link_is_followed_and_a_device_is_written_through(tmp_path: Path) -> None:
    """-o must never replace what the path is: a device node once became a file."""
    RunWriter.create(str(tmp_path / "lineage")).finish("complete")
    with audit.open(tmp_path / "lineage") as store:
        answer = store.sql("SELECT 1 AS one")
        (tmp_path / "target.csv").touch()
        os.symlink(tmp_path / "target.csv", tmp_path / "link.csv")
        write_file(answer, str(tmp_path / "link.csv"), "csv")
        assert (tmp_path / "link.csv").is_symlink()
        assert "one" in (tmp_path / "target.csv").read_text()
        os.mkfifo(tmp_path / "pipe.csv")
        read: list[str] = []
        reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe.csv").read_text()))
        reader.start()
        write_file(answer, str(tmp_path / "pipe.csv"), "csv")
        reader.join()
        assert "one" in read[0]
        with pytest.raises(UsageError, match="ending"):
            write_file(answer, str(tmp_path / "result.xyz"), "table")


def test_csv_on_a_terminal_shows_what_a_terminal_would_obey(tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    record(tmp_path / "s", samples=2)
    with audit.open(tmp_path / "s") as store:
        answer = store.sql("SELECT chr(27) || '[31m' AS text")
        terminal, pipe = Terminal(), io.StringIO()
        write_stream(answer, terminal, "csv")
        write_stream(answer, pipe, "csv")
    assert terminal.getvalue().splitlines() == ["text", "\\x1b[31m"]
    assert pipe.getvalue().splitlines() == ["text", "\x1b[31m"]
