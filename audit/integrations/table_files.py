"""A run's tables as plain files, one for each: for tools that read Parquet or CSV and know nothing of a store.

Generator states and checksummed parts stay in the store. CSV holds text alone: lists and maps as JSON, and no payloads.
A cell that a spreadsheet would take for a formula stays what it is: the file is data, and must read back as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from audit.records import Run
from audit.store.read.reader import Reader

TABLES = ("runs", "samples", "stages", "stage_outputs", "predictions", "activations", "steps", "parents", "findings")
_BINARY = {"samples": "source_raw", "activations": "payload"}


def export_parquet(reader: Reader, run: Run, folder: Path) -> list[Path]:
    """Write each table as TABLE.parquet; payloads part by part, as payloads-N.parquet."""
    return write_tables(reader, run, folder, TABLES) + _payloads(reader, run, folder)


def write_tables(reader: Reader, run: Run, folder: Path, tables: Sequence[str]) -> list[Path]:
    """Write these tables of a run as Parquet files."""
    return [_write(reader, run, table, folder / f"{table}.parquet") for table in tables]


def export_csv(reader: Reader, run: Run, folder: Path) -> list[Path]:
    """Write each table as TABLE.csv, without columns of bytes."""
    return [_write(reader, run, table, folder / f"{table}.csv", text=True) for table in TABLES]


def _write(reader: Reader, run: Run, table: str, path: Path, *, text: bool = False) -> Path:
    from audit.report.results import write_file

    left_out = f" EXCLUDE ({_BINARY[table]})" if text and table in _BINARY else ""
    answer = reader.sql(f"SELECT *{left_out} FROM {table} WHERE run_id = ?", run=run.run_id, parameters=[run.run_id])
    write_file(answer, str(path), "csv")
    return path


def _payloads(reader: Reader, run: Run, folder: Path) -> list[Path]:
    """Write the payloads part by part, because they may be larger than memory."""
    from audit.store.commits import run_folder

    written = []
    parts = [part for part in reader.manifest(run.run_id).parts if part.table == "payloads"]
    for number, part in enumerate(parts):
        path = folder / f"payloads-{number}.parquet"
        path.write_bytes(reader.filesystem.read(f"{run_folder(run.run_id)}/{part.file}"))
        written.append(path)
    return written
