"""Is every committed part what its manifest says? DuckDB does not check, so we do.

Size and SHA-256 tell a changed byte; the row count and the page checksums tell whether the file
can still be read as what it was.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import asdict, dataclass

import pyarrow.parquet as pq

from audit.records import Part, Progress
from audit.store.manifest import RUNS_FOLDER, manifest_path, run_folder
from audit.store.read.reader import Reader
from audit.store.schema import SCHEMAS


@dataclass(frozen=True, slots=True)
class Damage:
    """One file that is not what it was."""

    run_id: str
    file: str
    problem: str

    def as_json(self) -> dict[str, str]:
        """For machine output."""
        return asdict(self)


def verify(reader: Reader, run: str | None = None, progress: Callable[[Progress], None] | None = None) -> list[Damage]:
    """Every damage in one run, or in all of them."""
    chosen = [reader.manifest(run)] if run else [reader.manifest(row.run_id) for row in reader.runs()]
    damage = [Damage("", "run.json", str(error)) for error in reader.damaged] if run is None else []
    if run is None:
        damage += _orphaned(reader, {manifest.run.run_id for manifest in chosen})
    total = sum(len(manifest.parts) for manifest in chosen)
    done = 0
    for manifest in chosen:
        for part in manifest.parts:
            problem = _problem(reader, manifest.run.run_id, part)
            if problem:
                damage.append(Damage(manifest.run.run_id, part.file, problem))
            done += 1
            if progress is not None:
                progress(Progress(done, total, doing="verifying"))
    return damage


def _orphaned(reader: Reader, known: set[str]) -> list[Damage]:
    """Folders that hold parts but no manifest: a run.json that was there once is gone."""
    filesystem = reader.filesystem
    found = []
    for run_id in filesystem.list(RUNS_FOLDER):
        if run_id in known or filesystem.exists(manifest_path(run_id)):
            continue
        tables = [name for name in filesystem.list(run_folder(run_id)) if name in SCHEMAS]
        if any(filesystem.list(f"{run_folder(run_id)}/{table}") for table in tables):
            found.append(Damage(run_id, "run.json", "is missing, but the run has parts"))
    return found


def _problem(reader: Reader, run_id: str, part: Part) -> str | None:
    try:
        data = reader.filesystem.read(f"{run_folder(run_id)}/{part.file}")
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if len(data) != part.bytes:
        return f"has {len(data)} bytes instead of {part.bytes}"
    if hashlib.sha256(data).hexdigest() != part.sha256:
        return "has other bytes than were written (its SHA-256 differs)"
    try:
        rows = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True).metadata.num_rows
    except Exception as error:
        return f"is not a readable Parquet file: {error}"
    return None if rows == part.rows else f"has {rows} rows instead of {part.rows}"
