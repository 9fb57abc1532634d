"""Small stores for the members of the campaign, and what must hold of one afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from audit.errors import AuditError
from audit.records import Run
from audit.store.maintain.verify import verify
from audit.store.read.duckdb_files import PartFilesystem
from audit.store.read.reader import Reader
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter

#: Visits in one commit.
BATCH = 4


def visits(run_id: str, first: int, count: int = BATCH) -> dict[str, pa.Table]:
    """Return the rows of some visits, each a sample and a prediction."""
    indices = list(range(first, first + count))
    key = {"run_id": [run_id] * count, "epoch": [0] * count, "index": indices, "visit": [0] * count}
    wrong = [index % 3 == 0 for index in indices]
    return {
        "samples": table_of("samples", key | {"source": [f"{i}.png" for i in indices], "status": ["ok"] * count}),
        "predictions": table_of("predictions", key | {"correct": [not one for one in wrong], "call": [0] * count}),
    }


def write_run(place: Path, commits: int = 3) -> str:
    """Write a run of so many commits and return its id."""
    writer = RunWriter.create(str(place), Run(""))
    for number in range(commits):
        writer.append(visits(writer.run.run_id, number * BATCH))
        writer.flush()
    return writer.finish("complete").run_id


def make_fresh(place: Path, template: Path | None = None) -> Path:
    """Return the folder, empty, or as a copy of another."""
    shutil.rmtree(place, ignore_errors=True)
    if template is not None:
        shutil.copytree(template, place)
    else:
        place.mkdir(parents=True)
    return place


def find_loss(place: Path, expected: Mapping[str, int], only: str | None = None) -> str | None:
    """Return what is wrong with a store in which so many samples of each run were committed; None if nothing is.

    With `only`, the parts of that run alone are verified, and all manifests are read.
    """
    try:
        with Reader(str(place)) as reader:
            known = only is not None and any(row.run_id == only for row in reader.runs())
            if damage := verify(reader, only if known else None):
                return f"verify: {damage[0]}"
            if only is not None:
                expected = {only: expected[only]} if only in expected else {}
            return next(filter(None, (find_missing(reader, run, samples) for run, samples in expected.items())), None)
    except AuditError as error:
        return f"{type(error).__name__}: {error}"


def find_missing(reader: Reader, run_id: str, samples: int) -> str | None:
    """Return which of a run's samples and predictions are not there; None if all are."""
    if not samples:
        return None
    found = {table: sorted(read_indices(reader, run_id, table)) for table in ("samples", "predictions")}
    count = len(found["samples"])
    if count < samples or found["samples"] != list(range(count)):
        return f"{samples} samples were committed, {count} are there"
    graded = len(found["predictions"])
    return None if found["predictions"] == found["samples"] else f"{count} samples, but {graded} predictions"


def read_indices(reader: Reader, run_id: str, table: str) -> list[int]:
    """Return the index of every row of a run's table."""
    return read_column(reader, run_id, table, "index")


def read_column(reader: Reader, run_id: str, table: str, column: str) -> list[Any]:
    """Return a column of a run's table, through the files that DuckDB is given: quicker than connecting it, and no threads."""
    files = PartFilesystem(reader.filesystem)
    files.expose([reader.manifest(run_id)])
    names = [name for name, _, _ in files.parts_of(table)]
    found: list[Any] = []
    for name in names:
        with pa.PythonFile(files.open(name), mode="r") as file:
            # Without handing anything to a thread, which on a busy machine waits for its turn.
            part = pq.ParquetFile(file, pre_buffer=False)
            found += part.read(columns=[column], use_threads=False)[column].to_pylist()
    return found
