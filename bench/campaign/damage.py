"""One file of a store is changed: `verify` must find it, and no read may answer otherwise than before.

A part is opened as DuckDB opens it, and read with Arrow; one try in fifty asks DuckDB itself, which takes longer than all the rest.
"""

from __future__ import annotations

import os
import random
import zlib
from pathlib import Path

from audit.errors import AuditError
from audit.store.maintain.verify import verify
from audit.store.manifest import MARKER
from audit.store.read.reader import Reader
from bench.campaign.stores import fresh, read_indices, write_run
from bench.campaign.trial import Trial

GOAL = 20_000
COUNTS = "damaged variants of parts and manifests"
KINDS = ("bit", "byte", "cut", "zeros", "swap", "insert", "empty", "missing", "doubled", "other file")
_QUERY = "SELECT s.index, s.source, p.correct FROM samples s JOIN predictions p USING (run_id, index) ORDER BY ALL"


def run(trial: Trial) -> None:
    place = fresh(trial.folder / "s")
    run_id = write_run(place)
    files = sorted(path for path in place.rglob("*") if path.suffix in (".json", ".parquet"))
    contents = {path: path.read_bytes() for path in files}
    whole, answer = _read(place, run_id), _ask(place)
    while trial.more():
        path, kind = trial.chance.choice(files), trial.chance.choice(KINDS)
        changed = _damaged(contents, path, kind, trial.chance)
        if changed == contents[path]:
            continue
        os.unlink(path)
        if changed is not None:
            path.write_bytes(changed)
        # The root file says only that this is a store of a known version.
        if path.name != MARKER and not _is_found(place):
            trial.fail(f"try {trial.tried}: verify misses {kind} in {path.relative_to(place)}")
        trial.counts["reads"] += 1
        if (got := _read(place, run_id)) is not None and got != whole:
            trial.fail(f"try {trial.tried}: a silent read after {kind} in {path.relative_to(place)}")
        if trial.tried % 50 == 0:
            trial.counts["queries"] += 1
            if (rows := _ask(place)) is not None and rows != answer:
                trial.fail(f"try {trial.tried}: a silent query after {kind} in {path.relative_to(place)}")
        path.write_bytes(contents[path])
        trial.tried += 1


def _damaged(contents: dict[Path, bytes], path: Path, kind: str, chance: random.Random) -> bytes | None:
    """Return the file's new bytes; None for a file that is to be deleted."""
    data = contents[path]
    changed, at = bytearray(data), chance.randrange(len(data))
    if kind == "bit":
        changed[at] ^= 1 << chance.randrange(8)
    elif kind == "byte":
        changed[at] = chance.randrange(256)
    elif kind == "cut":
        changed = changed[:at]
    elif kind == "zeros":
        changed[at : at + 64] = bytes(len(changed[at : at + 64]))
    elif kind == "swap":
        other = chance.randrange(len(data))
        changed[at], changed[other] = changed[other], changed[at]
    elif kind == "insert":
        changed.insert(at, chance.randrange(256))
    elif kind == "empty":
        changed = bytearray()
    elif kind == "doubled":
        changed += data
    elif kind == "other file":
        changed = bytearray(contents[chance.choice(sorted(contents))])
    return None if kind == "missing" else bytes(changed)


def _is_found(place: Path) -> bool:
    try:
        with Reader(str(place), allow_damaged=True) as reader:
            return bool(verify(reader))
    except AuditError:
        return True


def _read(place: Path, run_id: str) -> list[object] | None:
    """Return what reading the run gives; None for an error."""
    try:
        with Reader(str(place)) as reader:
            run = reader.run(run_id)
            tables = [read_indices(reader, run_id, table) for table in ("samples", "predictions")]
            return [run.samples, run.status, run.accuracy, zlib.crc32(repr(tables).encode())]
    except AuditError:
        return None


def _ask(place: Path) -> list[tuple[object, ...]] | None:
    try:
        with Reader(str(place)) as reader:
            return reader.sql(_QUERY).fetchall()
    except AuditError:
        return None
