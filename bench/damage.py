"""Damage a store in random ways: does `verify` find it, and does any read answer otherwise than before?

    python -m bench.damage --seed 1 --minutes 2 --write

Every trial changes one file of a small store (a bit, a byte, a cut, zeros, an insertion, two bytes swapped, an empty file, no
file at all), asks `verify` and three queries, and puts the file back. `--write` puts the counts into docs/RELIABILITY.md.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa

import audit
from audit.store.schema import SCHEMAS
from audit.store.write.writer import RunWriter

KINDS = ("bit", "byte", "cut", "zeros", "swap", "insert", "empty", "missing")
QUERIES = (
    "SELECT index, status FROM samples ORDER BY ALL",
    "SELECT index, correct FROM predictions ORDER BY ALL",
    "SELECT run_id, samples, accuracy FROM runs",
)
PAGE = Path(__file__).parent.parent / "docs" / "RELIABILITY.md"
BEGIN, END = "<!-- damage: begin -->", "<!-- damage: end -->"


def make_store(place: str) -> None:
    """Write a small store: three commits of two tables."""
    writer = RunWriter.create(place)
    known = {"run_id": writer.run.run_id, "epoch": 0, "visit": 0, "call": 0, "status": "ok"}
    for start in range(0, 30, 10):
        tables = {}
        for table in ("samples", "predictions"):
            schema = SCHEMAS[table]
            rows = [
                {name: {**known, "index": index, "correct": bool(index % 3)}.get(name) for name in schema.names}
                for index in range(start, start + 10)
            ]
            tables[table] = pa.Table.from_pylist(rows, schema=schema)
        writer.append(tables)
        writer.flush()
    writer.finish("complete")


def damaged(data: bytes, kind: str, chance: random.Random) -> bytes | None:
    """Return the file's new bytes; None for a file that is to be deleted."""
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
    return None if kind == "missing" else bytes(changed)


def answers(place: str) -> list[object]:
    """Return what the queries give, each an error or rows."""
    found: list[object] = []
    for query in QUERIES:
        try:
            with audit.open(place) as store:
                found.append(store.sql(query).fetchall())
        except audit.AuditError:
            found.append(None)
    return found


def is_found(place: str) -> bool:
    """Whether `verify` says that something is damaged."""
    try:
        with audit.open(place, allow_damaged=True) as store:
            return bool(store.verify())
    except audit.AuditError:
        return True


def campaign(place: str, seed: int, minutes: float) -> Counter[str]:
    """Try until the time is over; return the counts."""
    make_store(place)
    whole, chance, counts = answers(place), random.Random(seed), Counter[str]()
    files = sorted(path for path in Path(place).rglob("*") if path.suffix in (".json", ".parquet"))
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        path, kind = chance.choice(files), chance.choice(KINDS)
        data = path.read_bytes()
        changed = damaged(data, kind, chance)
        if changed == data:
            continue
        if changed is None:
            os.unlink(path)
        else:
            path.write_bytes(changed)
        counts["variants"] += 1
        # The root file says only that this is a store of a known version.
        if not is_found(place) and path.name != "audit.json":
            counts["not found by verify"] += 1
            print(f"verify misses: {kind} in {path}", file=sys.stderr)
        silent = sum(got is not None and got != want for got, want in zip(answers(place), whole, strict=True))
        counts["silent reads"] += bool(silent)
        counts["reads"] += len(QUERIES)
        path.write_bytes(data)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--write", action="store_true", help="put the counts into docs/RELIABILITY.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = campaign(os.path.join(folder, "s"), given.seed, given.minutes)
    rows = ("variants", "not found by verify", "reads", "silent reads")
    table = "\n".join(["| what | count |", "| --- | ---: |", *(f"| {row} | {counts[row]:,} |" for row in rows)])
    print(table)
    if given.write:
        said = f"`python -m bench.damage --seed {given.seed} --minutes {given.minutes:g}`:\n\n{table}"
        text = PAGE.read_text()
        PAGE.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{said}\n{END}", text, flags=re.DOTALL))
    return 1 if counts["not found by verify"] or counts["silent reads"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
