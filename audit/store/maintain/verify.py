"""Is every committed part what its manifest says, and every manifest what its parts say? DuckDB does not check, so we do.

Size and SHA-256 tell a changed byte; the row count and the page checksums tell whether the file can still be read as what
it was. What a manifest claims of its rows (counts, accuracy, the range of indices of each part) is computed again.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from audit.errors import StoreDamaged, StoreError
from audit.records import Part, Progress, Run
from audit.store.commits import run_folder
from audit.store.index_set import read_index_set
from audit.store.maintain.signatures import problem_with
from audit.store.manifest import Manifest
from audit.store.part_file import index_bounds
from audit.store.read.part_digests import note_intact
from audit.store.read.reader import Reader
from audit.store.schema import SCHEMA_VERSION, SCHEMAS, add_missing_columns, schema_at
from audit.store.split_accuracy import evaluation_accuracy
from audit.store.tally import Tally

#: A part of at most so many rows is read by one thread.
_SMALL = 50_000


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged file of the store, and what is wrong with it."""

    run_id: str
    file: str
    problem: str

    def as_json(self) -> dict[str, str]:
        """Return it as `--json` prints it."""
        return asdict(self)


def verify(
    reader: Reader,
    run: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    key: str | os.PathLike[str] | None = None,
) -> list[Damage]:
    """Return every damage in one run, or in all of them; with a key, also runs that are not as its owner signed them."""
    chosen = [reader.manifest(run)] if run else [reader.manifest(row.run_id) for row in reader.runs()]
    damage = [_damaged_manifest(error) for error in reader.damaged] if run is None else []
    total = sum(len(manifest.parts) for manifest in chosen)
    done = 0
    for manifest in chosen:
        run_id = manifest.run.run_id
        tally: Tally | None = Tally()
        for part in manifest.parts:
            problem, counted = _examine(reader, run_id, part)
            if problem:
                damage.append(Damage(run_id, part.file, problem))
            tally = None if tally is None or counted is None else tally + counted
            done += 1
            if progress is not None:
                progress(Progress(done, total, doing="verifying"))
        if key is not None and (unsigned := problem_with(reader, manifest, key)) is not None:
            damage.append(Damage(run_id, "run.json", unsigned))
        # Of parts that cannot be read nothing can be counted.
        if tally is not None:
            problems = [*_contradictions(manifest.run, tally), *_other_accuracy(reader, manifest)]
            damage += [Damage(run_id, "run.json", problem) for problem in problems]
    return damage


def require_whole(reader: Reader, run: str | None, purpose: str) -> None:
    """Raise StoreDamaged where verify finds damage in a run: nothing is vouched for that was not looked at."""
    run_id = reader.run(run).run_id
    if damage := verify(reader, run_id):
        first = damage[0]
        raise StoreDamaged(
            f"The run {run_id} is damaged, so it was not {purpose}: {first.file} {first.problem}.",
            hint="See all of it with: audit store verify",
        )


def _contradictions(run: Run, tally: Tally) -> Iterator[str]:
    """Yield what the run's row says of its rows, and they do not."""
    claims: dict[str, tuple[float | None, float | None]] = {
        "samples": (run.samples, tally.samples),
        "failed": (run.failed, tally.failed),
        "graded": (run.graded, tally.graded),
        "wrong": (run.wrong, tally.graded - tally.correct),
    }
    # Before `last_epoch` was recorded, the accuracy was that of all epochs; before `accuracy_split`, that of all splits.
    overall = tally.correct / tally.graded if tally.graded else None
    if run.accuracy_split is None and (run.last_epoch is not None or run.accuracy != overall):
        claims["accuracy"] = (run.accuracy, tally.accuracy(run.last_epoch))
    if run.last_epoch is not None:
        claims["last_epoch"] = (run.last_epoch, tally.last_epoch(ended=run.status == "complete"))
    for name, (claimed, found) in claims.items():
        if claimed != found:
            yield f"says {name} = {claimed}, but its parts hold {found}"


def _other_accuracy(reader: Reader, manifest: Manifest) -> Iterator[str]:
    """Yield what the run's row says of the accuracy of a split, if the rows of that split do not."""
    run = manifest.run
    if run.accuracy_split is None:
        return
    claimed = run.accuracy, run.accuracy_split
    found = evaluation_accuracy(reader.filesystem, run.run_id, manifest.parts, run.last_epoch or 0)
    if claimed != found:
        yield f"says accuracy, accuracy_split = {claimed}, but its parts hold {found}"


def _damaged_manifest(error: Exception) -> Damage:
    if isinstance(error, StoreDamaged) and error.lost_run is not None:
        return Damage(error.lost_run, "run.json", "is missing, but the run has parts")
    return Damage("", "run.json", str(error))


def _examine(reader: Reader, run_id: str, part: Part) -> tuple[str | None, Tally | None]:
    """Return what is wrong with a part, and what its rows add to the run's counts; None where they cannot be counted."""
    path = f"{run_folder(run_id)}/{part.file}"
    try:
        # Asked first: nobody knows how large a file is that somebody else has put there.
        size, stamp = reader.filesystem.size(path), reader.filesystem.stamp(path)
        data = reader.filesystem.read(path) if size == part.bytes else b""
    except FileNotFoundError:
        return "is missing", None
    except OSError as error:
        return f"cannot be read: {error.strerror}", None
    except StoreError as error:
        return error.message, None
    if size != part.bytes:
        return f"has {size} bytes instead of {part.bytes}", None
    if hashlib.sha256(data).hexdigest() != part.sha256:
        return "has other bytes than were written (its SHA-256 differs)", None
    note_intact(reader.filesystem, path, part, stamp)
    try:
        file = pq.ParquetFile(io.BytesIO(data), pre_buffer=False, page_checksum_verification=True)
        # Before anything is read: few bytes can claim any number of rows.
        if file.metadata.num_rows != part.rows:
            return f"has {file.metadata.num_rows} rows instead of {part.rows}", None
        if (problem := _schema_problem(part, file.schema_arrow.names)) is not None:
            return problem, None
        wanted = [
            "index",
            *(
                {"samples": ["status", "epoch", "split"], "predictions": ["correct", "epoch", "call"]}.get(
                    part.table, []
                )
            ),
        ]
        # Handing a small part to threads takes longer than reading it.
        columns = [name for name in wanted if name in file.schema_arrow.names]
        table = file.read(columns=columns, use_threads=part.rows > _SMALL)
    except Exception as error:
        return f"is not a readable Parquet file: {error}", None
    bounds = index_bounds(table)
    if bounds != (part.first_index, part.last_index):
        listed = f"{part.first_index} to {part.last_index}"
        return f"has indices from {bounds[0]} to {bounds[1]}, and is listed with {listed}", Tally()
    if (problem := _index_problem(reader, run_id, part, table)) is not None:
        return problem, None
    is_counted = part.table in ("samples", "predictions")
    return None, Tally.of({part.table: add_missing_columns(part.table, table)}) if is_counted else Tally()


def _schema_problem(part: Part, columns: list[str]) -> str | None:
    """Return which columns a listed version adds or hides, which a reader would take for NULL; None if none."""
    if part.schema > SCHEMA_VERSION:
        return None
    listed = set(schema_at(part.table, part.schema).names)
    odd = sorted((set(columns) & set(SCHEMAS[part.table].names)) ^ listed)
    return f"is listed with version {part.schema} of its columns, which differs in {', '.join(odd)}" if odd else None


def _index_problem(reader: Reader, run_id: str, part: Part, table: pa.Table) -> str | None:
    """Return what is wrong with the file that lists a part's indices; None if nothing is."""
    file = part.index_file
    if file is None:
        return None
    try:
        found = read_index_set(file, reader.filesystem.read(f"{run_folder(run_id)}/{file}"))
    except (OSError, StoreError) as error:
        return f"is listed with {file}, which cannot be read: {error}"
    if found is None:
        return f"is listed with {file}, which has other bytes than were written"
    mine = np.asarray(table["index"].drop_null(), dtype=np.int64)
    return None if np.isin(mine, found).all() else f"has indices that {file} does not list"
