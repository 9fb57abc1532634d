"""How fast the store answers: against plain DuckDB on the same files, alternating, medians.

A synthetic store is written through the store's own writer and kept under --dir, so that it is built once:

    python -m bench.queries --dir /tmp/bench            # 1,000,000 predictions, 5,000,000 stage outputs
    python -m bench.queries --rows 100000               # a quick look

It prints ratios and times, and judges nothing: the targets stand beside the figures. A first answer is measured in new
processes, by their processor time after the imports, the least of several.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import audit
from audit.records import Run
from audit.store.commits import run_folder
from audit.store.views import VIEWS
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter

CLASSES = 10
STAGES = ("load", "Resize", "CenterCrop", "ToTensor", "Normalize")
BATCH = 5_000
QUERY = "FROM wrong_predictions WHERE label = 2"
SINGLE = "FROM predictions WHERE NOT correct AND label = 2"


# -- a store to ask --------------------------------------------------------------------------------


def build(location: str, rows: int, order: np.ndarray[Any, Any]) -> None:
    """One complete run of `rows` visits, written in the given order of indices."""
    writer = RunWriter.create(location, Run("", name="bench"))
    rng = np.random.default_rng(0)
    writer.append({"stages": _stages(writer.run.run_id)})
    for number, start in enumerate(range(0, rows, BATCH)):
        writer.append(_batch(writer.run.run_id, order[start : start + BATCH], number, rng))
    writer.finish("complete")


def _stages(run_id: str) -> pa.Table:
    count = len(STAGES)
    facts = {"run_id": [run_id] * count, "stage": list(range(count)), "path": [str(n) for n in range(count)]}
    return table_of("stages", facts | {"name": list(STAGES), "qualname": list(STAGES), "random": [False] * count})


def _batch(run_id: str, indices: np.ndarray[Any, Any], number: int, rng: np.random.Generator) -> dict[str, pa.Table]:
    count = len(indices)
    label = indices % CLASSES
    predicted = np.where(rng.random(count) < 0.05, (label + 1) % CLASSES, label)
    logits = rng.normal(size=(count, CLASSES)).astype(np.float32)
    odds = np.exp(logits)
    names = np.array([f"class {n}" for n in range(CLASSES)])
    key = {
        "run_id": [run_id] * count,
        "epoch": np.zeros(count, np.int32),
        "index": indices,
        "visit": np.zeros(count, np.int32),
    }
    place = {"batch": np.full(count, number), "position": np.arange(count, dtype=np.int32)}
    labelled = {"label": label, "label_name": names[label]}
    samples = {
        "source": [f"{n % CLASSES}/{n:08d}.jpg" for n in indices.tolist()],
        "root": ["/data/images"] * count,
        "source_digest": _hex(rng, count, 32),
        "source_bytes": rng.integers(10_000, 90_000, count),
        "status": ["ok"] * count,
    }
    predictions = {
        "predicted": predicted,
        "predicted_name": names[predicted],
        "confidence": rng.random(count, np.float32),
        "correct": predicted == label,
        "loss": rng.random(count, np.float32),
        "margin": rng.random(count, np.float32),
        "entropy": rng.random(count, np.float32),
        "label_rank": np.ones(count, np.int32),
        "logits": logits,
        "probabilities": odds / odds.sum(axis=1, keepdims=True),
        "input_digest": _hex(rng, count, 16),
        "step": np.full(count, number),
    }
    return {
        "samples": table_of("samples", key | place | labelled | samples),
        "stage_outputs": _outputs(run_id, indices, rng),
        "predictions": table_of("predictions", key | place | labelled | predictions),
    }


def _outputs(run_id: str, indices: np.ndarray[Any, Any], rng: np.random.Generator) -> pa.Table:
    stages, count = len(STAGES), len(indices) * len(STAGES)
    facts = {
        "run_id": [run_id] * count,
        "epoch": np.zeros(count, np.int32),
        "index": np.repeat(indices, stages),
        "visit": np.zeros(count, np.int32),
        "stage": np.tile(np.arange(stages, dtype=np.int32), len(indices)),
        "name": list(STAGES) * len(indices),
        "kind": ["tensor"] * count,
        "dtype": ["float32"] * count,
        "shape": np.tile(np.array([[3, 224, 224]]), (count, 1)),
        "digest": _hex(rng, count, 16),
        "changed": np.ones(count, bool),
        **{name: rng.random(count) for name in ("min", "max", "mean", "std")},
        "zeros": rng.integers(0, 1000, count),
        "nonfinite": np.zeros(count, np.int64),
        "bytes": np.full(count, 602_112),
        "microseconds": rng.random(count, np.float32),
        "payload": ["none"] * count,
    }
    return table_of("stage_outputs", facts)


def _hex(rng: np.random.Generator, count: int, size: int) -> pa.Array:
    text = rng.bytes(count * size).hex().encode()
    offsets = np.arange(count + 1, dtype=np.int32) * size * 2
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


def prepare_store(folder: Path, name: str, rows: int, order: Callable[[], np.ndarray[Any, Any]]) -> str:
    """The store of that name, built if it is not there yet."""
    location = folder / f"{name}-{rows}"
    done = folder / f"{name}-{rows}.done"
    if not done.exists():
        begun = time.perf_counter()
        build(str(location), rows, order())
        done.touch()
        print(f"built {location} in {time.perf_counter() - begun:.0f} s")
    return str(location)


# -- the questions ---------------------------------------------------------------------------------


def connect_plainly(store: audit.Store) -> duckdb.DuckDBPyConnection:
    """DuckDB with no code of ours, given the paths of the same files and the same views."""
    connection = duckdb.connect(":memory:")
    manifest = store.reader.manifest("latest")
    for table in ("samples", "predictions"):
        folder = Path(store.location, run_folder(manifest.run.run_id))
        files = [str(folder / part.file) for part in manifest.parts if part.table == table]
        connection.execute(f"CREATE VIEW {table} AS FROM read_parquet({files})")
    for view in ("graded_predictions", "lineage", "wrong_predictions"):
        connection.execute(f"CREATE VIEW {view} AS {VIEWS[view]}")
    return connection


def measure_seconds(action: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def compare(what: str, ask_ours: Callable[[], Any], ask_theirs: Callable[[], Any], target: str, repeats: int) -> None:
    """Medians of alternating calls, and their ratio."""
    pairs = [(measure_seconds(ask_ours), measure_seconds(ask_theirs)) for _ in range(repeats)]
    mine, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{what:58} {mine * 1e3:8.1f} ms  against {other * 1e3:8.1f} ms   ratio {mine / other:5.2f}   {target}")


def queries(location: str, repeats: int) -> None:
    """(a) The wrong predictions of one class."""
    with audit.open(location) as store:
        connection = connect_plainly(store)
        mine = store.sql(QUERY).arrow()
        assert mine.num_rows == connection.sql(QUERY).to_arrow_table().num_rows
        print(f"{mine.num_rows:,} rows in the answer")

        def ask_ours() -> Any:
            return store.sql(QUERY).arrow()

        def ask_theirs() -> Any:
            return connection.sql(QUERY).to_arrow_table()

        def ask_single() -> Any:
            return connection.sql(SINGLE).to_arrow_table()

        compare("wrong_predictions WHERE label = 2, same SQL in DuckDB", ask_ours, ask_theirs, "(≤ 1.3)", repeats)
        compare("the same against predictions alone", ask_ours, ask_single, "", repeats)
        compare("predictions alone, both", lambda: store.sql(SINGLE).arrow(), ask_single, "(≤ 1.3)", repeats)

    def fresh_ours() -> None:
        with audit.open(location) as opened:
            opened.sql(QUERY).arrow()

    def fresh_plain() -> None:
        with audit.open(location) as opened:
            connect_plainly(opened).sql(QUERY).to_arrow_table()

    compare("the same, opened again each time", fresh_ours, fresh_plain, "", max(3, repeats // 2))


def traces(name: str, location: str, rows: int) -> None:
    """(b) One sample among all."""
    chosen = random.Random(0).sample(range(rows), 50)
    with audit.open(location) as store:
        first = measure_seconds(lambda: store.trace(index=rows // 2))
        spent = time.process_time()
        times = [measure_seconds(lambda index=index: store.trace(index=index)) for index in chosen]  # type: ignore[misc]
        spent = (time.process_time() - spent) / len(times)
        read = store.reader.bytes_read()
    median, worst = statistics.median(times) * 1e3, max(times) * 1e3
    figures = (
        f"first {first * 1e3:6.1f} ms, median {median:6.1f} ms, worst {worst:6.1f} ms, processor {spent * 1e3:5.1f} ms"
    )
    print(f"trace, {name:11} {figures}   (≤ 50 ms)   {read / 51 / 2**20:.1f} MiB read each")
    print(f"trace, {name:11} {first_answer(location, str(rows // 2))}   (≤ 100 ms)")


def measure_opening(what: str, location: str, target: str, repeats: int) -> None:
    """(c) Opening, and the first question after it."""

    def ask() -> None:
        with audit.open(location) as store:
            store.sql("SELECT count(*) FROM runs").fetchall()

    spent = time.process_time()
    opened = statistics.median(measure_seconds(lambda: audit.open(location).close()) for _ in range(repeats))
    spent = (time.process_time() - spent) / repeats
    worked = time.process_time()
    asked = statistics.median(measure_seconds(ask) for _ in range(repeats))
    worked = (time.process_time() - worked) / repeats
    figures = f"opened in {opened * 1e3:6.1f} ms (processor {spent * 1e3:.1f} ms) {target}"
    print(f"{what:12} {figures}, with a first question {asked * 1e3:6.1f} ms (processor {worked * 1e3:.1f} ms)")
    print(f"{what:12} {first_answer(location, 'runs')}   (≤ 150 ms)")


def first_answer(location: str, question: str, repeats: int = 5) -> str:
    """What the first answer of a process takes: the sample of that index, or which runs there are."""
    command = [sys.executable, "-m", "bench.queries", "--first", location, question]
    rounds = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(repeats)]
    least = [min(column) * 1e3 for column in zip(*rounds, strict=True)]
    return "first answer of a process: opening {:.1f} ms, answer {:.1f} ms, both {:.1f} ms of processor time".format(
        *least
    )


def measure_first(location: str, question: str) -> None:
    """Print the seconds of processor time that opening and answering take in this process, and their sum."""
    import audit.lineage.trace  # so that no import is counted

    begun = time.process_time()
    with audit.open(location) as store:
        opened = time.process_time()
        if question == "runs":
            store.sql("SELECT count(*) FROM runs").fetchall()
        else:
            store.trace(index=int(question))
        answered = time.process_time()
    print(json.dumps([opened - begun, answered - opened, answered - begun]))


def many_runs(folder: Path, count: int) -> str:
    """A store of many small runs."""
    location = folder / f"runs-{count}"
    if not (folder / f"runs-{count}.done").exists():
        rng = np.random.default_rng(0)
        for number in range(count):
            writer = RunWriter.create(str(location), Run(f"r{number:06d}", sequence=number + 1))
            writer.append({"stages": _stages(writer.run.run_id), **_batch(writer.run.run_id, np.arange(20), 0, rng)})
            writer.finish("complete")
        (folder / f"runs-{count}.done").touch()
    return str(location)


def main() -> None:
    """Build what is missing, then measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="where the stores are kept between runs")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--first", nargs=2, metavar=("STORE", "QUESTION"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first:
        measure_first(*options.first)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.dir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        in_order = prepare_store(folder, "ordered", options.rows, lambda: np.arange(options.rows))
        shuffled = prepare_store(
            folder, "shuffled", options.rows, lambda: np.random.default_rng(1).permutation(options.rows)
        )
        queries(in_order, options.repeats)
        traces("in order", in_order, options.rows)
        traces("shuffled", shuffled, options.rows)
        measure_opening("1 run", in_order, "", options.repeats)
        measure_opening(f"{options.runs} runs", many_runs(folder, options.runs), "(≤ 200 ms)", 5)


if __name__ == "__main__":
    main()
