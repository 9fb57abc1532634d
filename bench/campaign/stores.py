"""Small stores for the members of the campaign, and what must hold of one afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path

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


def fresh(place: Path) -> Path:
    """Return the folder, empty."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place


def lost(place: Path, run_id: str | None, samples: int) -> str | None:
    """Return what is wrong with a store in which so many samples of a run were committed; None if nothing is.

    Without a run, everything in the store is verified.
    """
    try:
        with Reader(str(place)) as reader:
            if damage := verify(reader, run_id):
                return f"verify: {damage[0]}"
            if run_id is None or not samples:
                return None
            indices, graded = (read_indices(reader, run_id, table) for table in ("samples", "predictions"))
    except AuditError as error:
        return f"{type(error).__name__}: {error}"
    if len(indices) < samples or sorted(indices) != list(range(len(indices))):
        return f"{samples} samples were committed, {len(indices)} are there"
    return None if sorted(graded) == sorted(indices) else f"{len(indices)} samples, but {len(graded)} predictions"


def read_indices(reader: Reader, run_id: str, table: str) -> list[int]:
    """Return the index of every row of a run's table, through the files that DuckDB is given: quicker than connecting it."""
    files = PartFilesystem(reader.filesystem)
    names = [name for name, owner, _ in files.expose([reader.manifest(run_id)]).get(table, ()) if owner == run_id]
    found: list[int] = []
    for name in names:
        with pa.PythonFile(files.open(name), mode="r") as file:
            found += pq.ParquetFile(file).read(columns=["index"], use_threads=False)["index"].to_pylist()
    return found
