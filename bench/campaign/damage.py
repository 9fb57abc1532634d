"""One file of a store is changed, or commits of its log are: `verify` must find it, and no read may answer otherwise than before.

A part is opened as DuckDB opens it, and read with Arrow; one try in fifty asks DuckDB itself, which takes longer than all the rest.
The store has a run that is complete and one that was interrupted, with its log of commits. Deleting the newest commit of the latter
is not tried: that is the run as it was one commit earlier, and only a signature tells (docs/TRUST.md).
"""

from __future__ import annotations

import itertools
import os
import random
import zlib
from pathlib import Path

from audit.errors import AuditError
from audit.store.commits import LOG_FOLDER
from audit.store.maintain.verify import verify
from audit.store.marker import MARKER
from audit.store.read.reader import Reader
from audit.store.write.writer import RunWriter
from bench.campaign.children import Child
from bench.campaign.stores import BATCH, make_fresh, read_indices, visits, write_run
from bench.campaign.trial import Trial

GOAL = 20_000
COUNTS = "damaged variants of parts, manifests and logs of commits"
KINDS = ("bit", "byte", "cut", "zeros", "swap", "insert", "empty", "missing", "doubled", "other file")
LOG_KINDS = ("drop", "repeat", "exchange", "renumber", "from the other run")
_QUERY = "SELECT s.index, s.source, p.correct FROM samples s JOIN predictions p USING (run_id, index) ORDER BY ALL"

#: The files of a store that are changed, with their new bytes; None for one that is to be deleted.
Change = dict[Path, bytes | None]


def run(trial: Trial) -> None:
    place = make_fresh(trial.folder / "s")
    runs = [write_run(place, commits=2), _write_interrupted(place)]
    contents = {path: path.read_bytes() for path in sorted(place.rglob("*")) if path.suffix in (".json", ".parquet")}
    log = sorted(path for path in contents if path.parent.name == LOG_FOLDER)
    whole, answer = _read(place, runs), _ask(place)
    while trial.more():
        if trial.chance.random() < 0.1:
            kind = trial.chance.choice(LOG_KINDS)
            change = _damaged_log(contents, log, kind, trial.chance)
        else:
            path, kind = trial.chance.choice(list(contents)), trial.chance.choice(KINDS)
            change = {path: _damage(contents, path, kind, trial.chance)}
        if all(contents.get(path) == data for path, data in change.items()) or change == {log[-1]: None}:
            continue
        name = f"{kind} in {', '.join(str(path.relative_to(place)) for path in change)}"
        _write(change)
        # The root file says only that this is a store of a known version.
        if not any(path.name == MARKER for path in change) and not _is_found(place, change):
            trial.fail(f"try {trial.tried}: verify misses {name}")
        trial.counts["reads"] += 1
        if (got := _read(place, runs)) is not None and got != whole:
            trial.fail(f"try {trial.tried}: a silent read after {name}")
        if trial.tried % 50 == 0:
            trial.counts["queries"] += 1
            if (rows := _ask(place)) is not None and rows != answer:
                trial.fail(f"try {trial.tried}: a silent query after {name}")
        trial.counts["changes of the log"] += kind in LOG_KINDS
        _write({path: contents.get(path) for path in change})
        trial.tried += 1


def _write_interrupted(place: Path) -> str:
    """Write a run whose process dies: its commits stay in the log."""

    def work(out: int) -> None:
        writer = RunWriter.create(str(place))
        for number in range(3):
            writer.append(visits(writer.run.run_id, number * BATCH))
            writer.flush()
        os.write(out, writer.run.run_id.encode())
        os._exit(0)

    return Child(work).end()[1][0]


def _write(change: Change) -> None:
    for path, data in change.items():
        path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)


def _damaged_log(contents: dict[Path, bytes], log: list[Path], kind: str, chance: random.Random) -> Change:
    one, other = sorted(chance.sample(log, 2))
    if kind == "drop":
        return {one: None}  # a later one is there
    if kind == "repeat":
        return {log[-1].with_name(f"{int(log[-1].stem) + 1:010d}.json"): contents[one]}
    if kind == "exchange":
        return {one: contents[other], other: contents[one]}
    if kind == "renumber":
        # The commits from one on move up by one place.
        later = log[log.index(one) :]
        return {path: contents[after] for path, after in itertools.pairwise(later)} | {later[-1]: None}
    return {
        one: next(
            data for path, data in contents.items() if path.name == "run.json" and path.parent != one.parent.parent
        )
    }


def _damage(contents: dict[Path, bytes], path: Path, kind: str, chance: random.Random) -> bytes | None:
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


def _is_found(place: Path, change: Change) -> bool:
    """Return whether `verify` finds a change; of the runs, only the changed one is verified."""
    run_id = next(iter(change)).relative_to(place).parts[1]
    try:
        with Reader(str(place), allow_damaged=True) as reader:
            return bool(reader.damaged) or bool(verify(reader, run_id))
    except AuditError:
        return True


def _read(place: Path, runs: list[str]) -> list[object] | None:
    """Return what reading the runs gives; None for an error."""
    try:
        with Reader(str(place)) as reader:
            found: list[object] = []
            for run_id in runs:
                run = reader.run(run_id)
                tables = [read_indices(reader, run_id, table) for table in ("samples", "predictions")]
                found += [run.samples, run.status, run.accuracy, zlib.crc32(repr(tables).encode())]
            return found
    except AuditError:
        return None


def _ask(place: Path) -> list[tuple[object, ...]] | None:
    try:
        with Reader(str(place)) as reader:
            return reader.sql(_QUERY).fetchall()
    except AuditError:
        return None
