"""How time and memory grow with the size of a store, beside plain DuckDB, pandas and SQLite on the same rows.

    python -m bench.scale --dir /tmp/scale                       # 100,000 and 1,000,000 predictions, 1,000 runs
    python -m bench.scale --dir /tmp/scale --rows 1000000 10000000

For each size there is a store with so many predictions and five stage outputs each (built as `bench.queries`, `bench.checks`
and `bench.diff` build theirs, once, and kept under --dir). Each question is asked in a process of its own: the first answer,
which includes opening, then the median of several more, the processor time of one of those (which a
busy machine does not change), and the peak memory of the whole process. It judges nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.queries import QUERY, many_runs, prepare_store

REPEATS = 7
_TABLES = {
    "samples": ("index", "source", "source_digest", "label", "label_name", "status"),
    "predictions": ("index", "label", "predicted", "predicted_name", "confidence", "correct", "loss", "logits"),
    "stage_outputs": ("index", "stage", "name", "digest", "mean", "std"),
}
Question = Callable[[], Any]


# -- what is asked ---------------------------------------------------------------------------------


def audit_query(location: str, rows: int) -> Iterator[Question]:
    """The wrong predictions of one class, with all they are joined to."""
    import audit

    with audit.open(location) as store:
        yield lambda: store.sql(QUERY).arrow().num_rows


def audit_streamed(location: str, rows: int) -> Iterator[Question]:
    """The same, its answer taken batch by batch: what a query needs beside its answer."""
    import audit

    with audit.open(location) as store:
        yield lambda: sum(batch.num_rows for batch in store.sql(QUERY).arrow_batches(10_000))


def audit_trace(location: str, rows: int) -> Iterator[Question]:
    """One sample among all, another one each time."""
    import audit

    chance = random.Random(0)
    with audit.open(location) as store:
        yield lambda: store.trace(index=chance.randrange(rows)).stages


def audit_gallery(location: str, rows: int) -> Iterator[Question]:
    """The sixty wrong predictions with the largest loss, as a page of the gallery shows them."""
    import audit
    from audit.lineage.queries.gallery_rows import PickedSamples, block, completeness

    with audit.open(location) as store:
        run = store.run()
        asked = block(PickedSamples(run, "NOT correct", completeness(store.reader, run)))
        yield lambda: store.sql(asked.queries[0], parameters=asked.parameters).fetchall()


def audit_open(location: str, rows: int) -> Iterator[Question]:
    """Opening the store and asking which runs it has."""
    import audit

    def ask() -> None:
        with audit.open(location) as store:
            store.sql("SELECT count(*) FROM runs").fetchall()

    yield ask


def audit_diff(location: str, rows: int) -> Iterator[Question]:
    """Two runs of so many predictions, compared stage by stage."""
    import audit

    with audit.open(location) as store:
        yield lambda: store.diff("a", "b").as_json()


def audit_checks(location: str, rows: int) -> Iterator[Question]:
    """Every default check of a clean run; those that read source files or replay have nothing to read here."""
    import audit

    with audit.open(location) as store:
        yield lambda: store.check(record=False).outcomes


def duckdb_query(location: str, rows: int) -> Iterator[Question]:
    """The same SQL over the same files, given to DuckDB by their paths."""
    import audit
    from bench.queries import connect_plainly

    with audit.open(location) as store:
        connection = connect_plainly(store)
    yield lambda: connection.sql(QUERY).to_arrow_table().num_rows


def duckdb_trace(location: str, rows: int) -> Iterator[Question]:
    """One sample's rows of three tables, without knowing which part holds it."""
    import duckdb

    connection, chance = duckdb.connect(), random.Random(0)
    for table in _TABLES:
        connection.execute(f"CREATE VIEW {table} AS FROM read_parquet({_files(location, table)})")

    def ask() -> None:
        index = chance.randrange(rows)
        for table in _TABLES:
            connection.execute(f"FROM {table} WHERE index = {index}").fetchall()

    yield ask


def pandas_query(location: str, rows: int) -> Iterator[Question]:
    """Predictions filtered while they are read, then joined to all samples."""
    import pandas as pd

    def ask() -> int:
        wrong = pd.read_parquet(_files(location, "predictions"), filters=[("correct", "==", False), ("label", "==", 2)])
        return len(wrong.merge(pd.read_parquet(_files(location, "samples")), on=["index", "epoch", "visit"]))

    yield ask


def pandas_trace(location: str, rows: int) -> Iterator[Question]:
    """One sample's rows of three tables, filtered while they are read."""
    import pandas as pd

    chance = random.Random(0)

    def ask() -> None:
        index = chance.randrange(rows)
        for table in _TABLES:
            pd.read_parquet(_files(location, table), filters=[("index", "==", index)])

    yield ask


def sqlite_query(location: str, rows: int) -> Iterator[Question]:
    """The columns that people look at, with an index on class and correctness."""
    connection = sqlite3.connect(f"{location}.sqlite")
    yield lambda: len(
        connection.execute(
            "SELECT * FROM predictions JOIN samples USING (idx) WHERE NOT correct AND predictions.label = 2"
        ).fetchall()
    )


def sqlite_trace(location: str, rows: int) -> Iterator[Question]:
    """One sample's rows of three tables, by their indices."""
    connection, chance = sqlite3.connect(f"{location}.sqlite"), random.Random(0)

    def ask() -> None:
        index = chance.randrange(rows)
        for table in _TABLES:
            connection.execute(f"SELECT * FROM {table} WHERE idx = ?", [index]).fetchall()

    yield ask


QUESTIONS = {
    "query": {"audit": audit_query, "DuckDB": duckdb_query, "pandas": pandas_query, "SQLite": sqlite_query},
    "query, in batches": {"audit": audit_streamed},
    "trace": {"audit": audit_trace, "DuckDB": duckdb_trace, "pandas": pandas_trace, "SQLite": sqlite_trace},
    "gallery": {"audit": audit_gallery},
    "open": {"audit": audit_open},
    "checks": {"audit": audit_checks},
    "diff": {"audit": audit_diff},
    "open runs": {"audit": audit_open},
}


def _files(location: str, table: str) -> list[str]:
    return sorted(str(path) for path in Path(location).glob(f"runs/*/{table}/*.parquet"))


# -- measuring -------------------------------------------------------------------------------------


def ask(question: str, who: str, location: str, rows: int) -> dict[str, float]:
    """In this process: the first answer, then the median and the processor time of the next ones, and the peak memory."""
    begun = time.perf_counter()
    times = []
    for answer in QUESTIONS[question][who](location, rows):
        answer()
        first, worked = time.perf_counter() - begun, time.process_time()
        for _ in range(1 if question in ("diff", "checks") else REPEATS):
            start = time.perf_counter()
            answer()
            times.append(time.perf_counter() - start)
        worked = (time.process_time() - worked) / len(times)
    return {"first": first, "again": statistics.median(times), "processor": worked, "peak": peak_memory()}


def peak_memory() -> float:
    """In MB, of this process since it was started: `getrusage` would count what its parent held when it forked."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def print_measurement(question: str, who: str, location: str, rows: int) -> None:
    """Ask in a process of its own and print a line."""
    command = [sys.executable, "-m", "bench.scale", "--ask", question, who, location, str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"| {question} | {who} | {rows:,} | failed: {done.stderr.strip().splitlines()[-1][:100]} | | | |")
        return
    found = json.loads(done.stdout)
    line = f"| {question} | {who} | {rows:,} | {found['first'] * 1e3:,.0f} | {found['again'] * 1e3:,.1f} "
    print(f"{line}| {found['processor'] * 1e3:,.1f} | {found['peak']:,.0f} |", flush=True)


def built_sqlite(location: str) -> None:
    """The same rows in SQLite, with the indices that the questions want."""
    import pyarrow.parquet as pq

    target = Path(f"{location}.sqlite")
    if target.exists():
        return
    part = target.with_suffix(".part")
    part.unlink(missing_ok=True)
    connection = sqlite3.connect(part)
    connection.execute("PRAGMA synchronous = off")
    for table, columns in _TABLES.items():
        names = ["idx" if name == "index" else name for name in columns]
        connection.execute(f"CREATE TABLE {table} ({', '.join(names)})")
        for file in _files(location, table):
            read = pq.read_table(file, columns=list(columns))
            lists = [column.to_pylist() for column in read.columns]
            if "logits" in columns:
                at = columns.index("logits")
                lists[at] = [np.float32(row).tobytes() for row in lists[at]]
            connection.executemany(
                f"INSERT INTO {table} VALUES ({', '.join('?' * len(names))})", zip(*lists, strict=True)
            )
        connection.execute(f"CREATE INDEX {table}_idx ON {table} (idx)")
    connection.execute("CREATE INDEX wrong ON predictions (label, correct)")
    connection.commit()
    connection.close()
    part.rename(target)


def sizes(location: str, rows: int) -> None:
    """Bytes and files of each table, per prediction."""
    for table in ("samples", "stage_outputs", "predictions"):
        files = [Path(file) for file in _files(location, table)]
        total = sum(file.stat().st_size for file in files)
        print(f"| {table} | {rows:,} | {len(files)} | {total / 2**20:,.0f} MiB | {total / rows:,.0f} |")


def main() -> None:
    """Build what is missing, then measure, smallest first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where the stores are kept between runs")
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1_000])
    parser.add_argument("--no-sqlite", action="store_true", help="leave out SQLite, which takes long to fill")
    parser.add_argument("--ask", nargs=4, metavar=("QUESTION", "WHO", "STORE", "ROWS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        question, who, location, rows = options.ask
        print(json.dumps(ask(question, who, location, int(rows))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.dir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        survey(folder, options.rows, options.runs, not options.no_sqlite)


def survey(folder: Path, many_rows: list[int], many: list[int], with_sqlite: bool) -> None:
    """Every question at every size."""
    from bench.checks import build
    from bench.diff import write_run

    stores = {rows: prepare_store(folder, "ordered", rows, lambda rows=rows: np.arange(rows)) for rows in many_rows}  # type: ignore[misc]
    print("| table | predictions | parts | size | bytes per prediction |\n| --- | --- | --- | --- | --- |")
    for rows, location in stores.items():
        sizes(location, rows)
    print(
        "\n| question | who | size | first (ms) | again (ms) | processor (ms) | peak (MB) |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    for question in ("query", "query, in batches", "trace", "gallery", "open"):
        for who in QUESTIONS[question]:
            for rows, location in stores.items():
                if who == "SQLite":
                    if not with_sqlite:
                        continue
                    built_sqlite(location)
                print_measurement(question, who, location, rows)
    for rows in many_rows:
        clean = folder / f"checks-{rows}"
        if not clean.exists():
            build(clean, rows)
        print_measurement("checks", "audit", str(clean), rows)
    for rows in many_rows:
        location = str(folder / f"diff-{rows}")
        if not Path(location).exists():
            for name in ("a", "b"):
                write_run(location, name, rows, second=name == "b")
        print_measurement("diff", "audit", location, rows)
    for count in many:
        print_measurement("open runs", "audit", many_runs(folder, count), count)


if __name__ == "__main__":
    main()
