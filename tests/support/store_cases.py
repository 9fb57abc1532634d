"""Rows, runs and stores for the tests of the store: real parts through the real writer."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

import audit
from audit.records import Run
from audit.store.commits import seal
from audit.store.schema import SCHEMAS
from audit.store.wire import table_of
from audit.store.write.writer import RunWriter

STAGES = ("load", "Resize", "Normalize")
HOSTILE = (
    "plain.png",
    "new\nline.png",
    "tab\tand\rreturn",
    "quote'\"`.png",
    "<script>alert(1)</script>",
    "pipe | and \\ back",
    "=1+1",
    "trick \\| pipe",
    "ends in a backslash\\",
    "![x](https://example.invalid/x.png)",
    "\x1b[31mred\x1b[0m",
    "☃ 🐍 é.png",
    "\u202egnp.exe",
    "",
    "NULL",
    "a,b;c",
    "${HOME} $(id) `id`",
    "'; DROP TABLE runs; --",
    "\ufeffbom",
    "[bold]markup[/bold]",
)


def visit_tables(
    run_id: str, indices: list[int], *, epoch: int = 0, batch: int = 0, model: bool = True
) -> dict[str, pa.Table]:
    """Whole visits: for each index a sample, an output of every stage and a prediction."""
    count = len(indices)
    key = {"run_id": [run_id] * count, "epoch": [epoch] * count, "index": indices, "visit": [0] * count}
    place = {"batch": [batch] * count, "position": list(range(count))}
    labels = [index % 3 for index in indices]
    guessed = [label if index % 5 else (label + 1) % 3 for index, label in zip(indices, labels, strict=True)]
    outputs = {
        "run_id": [run_id] * (count * len(STAGES)),
        "epoch": [epoch] * (count * len(STAGES)),
        "index": [index for index in indices for _ in STAGES],
        "visit": [0] * (count * len(STAGES)),
        "stage": list(range(len(STAGES))) * count,
        "name": list(STAGES) * count,
        "kind": ["tensor"] * (count * len(STAGES)),
        "digest": [f"{index:028x}{stage:04x}" for index in indices for stage in range(len(STAGES))],
        "changed": [True] * (count * len(STAGES)),
        "shape": [[3, 8, 8]] * (count * len(STAGES)),
        "payload": ["none"] * (count * len(STAGES)),
    }
    tables = {
        "samples": table_of(
            "samples",
            key
            | place
            | {"source": [f"{n % 3}/{n}.png" for n in indices], "root": ["/data"] * count, "label": labels}
            | {"label_name": [f"c{n}" for n in labels], "status": ["ok"] * count},
        ),
        "stage_outputs": table_of("stage_outputs", outputs),
    }
    if model:
        tables["predictions"] = table_of(
            "predictions",
            key
            | place
            | {"label": labels, "label_name": [f"c{n}" for n in labels], "predicted": guessed}
            | {"correct": [a == b for a, b in zip(labels, guessed, strict=True)], "logits": [[0.0, 1.0, 2.0]] * count},
        )
    return tables


def stage_table(run_id: str) -> pa.Table:
    """The stages of the pipeline above."""
    numbers = list(range(len(STAGES)))
    facts = {"run_id": [run_id] * len(STAGES), "stage": numbers, "path": [str(n) for n in numbers]}
    return table_of("stages", facts | {"name": list(STAGES), "qualname": list(STAGES), "random": [False] * len(STAGES)})


def record(
    location: str | os.PathLike[str],
    *,
    samples: int = 20,
    batch: int = 7,
    name: str | None = None,
    run_id: str = "",
    model: bool = True,
    status: Any = "complete",
) -> Run:
    """One run of so many samples, in several commits."""
    writer = RunWriter.create(os.fspath(location), Run(run_id, name=name, classes=["c0", "c1", "c2"]))
    try:
        writer.append({"stages": stage_table(writer.run.run_id)})
        for number, start in enumerate(range(0, samples, batch)):
            indices = list(range(start, min(start + batch, samples)))
            writer.append(visit_tables(writer.run.run_id, indices, batch=number, model=model))
            writer.flush()
    except BaseException:
        writer.abandon()  # an error holds its frames, and these the run's lock, until they are collected
        raise
    return writer.finish(status)


def tree_digest(root: str | os.PathLike[str]) -> dict[str, str]:
    """Every file below a folder with the digest of its bytes: equal exactly when nothing was touched."""
    found = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in (*files, *folders):
            path = os.path.join(folder, name)
            content = b"" if os.path.isdir(path) else Path(os.fsdecode(path)).read_bytes()
            found[os.fsdecode(path)] = hashlib.sha256(content).hexdigest()
    return found


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(HOSTILE)
_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): _TEXT,
    pa.binary(): st.binary(max_size=12),
    pa.bool_(): st.booleans(),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
}


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Anything that a column may hold."""
    if pa.types.is_list(kind):
        return st.lists(_VALUES[kind.value_type], max_size=4)
    return _VALUES[kind]


@st.composite
def rows_of(draw: st.DrawFn, table: str) -> list[dict[str, Any]]:
    """Rows of one table: any value and any NULL, except for the run's id."""
    columns = {f.name: st.none() | values_of(f.type) for f in SCHEMAS[table] if f.name != "run_id"}
    return draw(st.lists(st.fixed_dictionaries(columns), min_size=1, max_size=5))


def write_forever(place: str, resume: str, reported: Any) -> None:
    """Visits of rising index, a commit after every few, until the process is killed. Tells the run's id."""
    writer = RunWriter.resume(place, resume) if resume else RunWriter.create(place)
    run_id = writer.run.run_id
    at = writer.run.samples
    if not resume:
        writer.append({"stages": stage_table(run_id)})
    reported.send(run_id)
    while True:
        writer.append(visit_tables(run_id, list(range(at, at + 5))))
        writer.flush()
        at += 5


def rewrite(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest or a record of the log, and give it the digest of its new bytes: as a forger would."""
    content = json.loads(file.read_bytes())
    content.pop("digest")
    change(content)
    file.write_bytes(seal(content)[0])


def wait_for_a_commit(place: str | Path, run_id: str) -> None:
    """Return when a run has a sample; fail if it has none within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with audit.open(place) as store:
            if store.run(run_id).samples:
                return
        time.sleep(0.05)
    pytest.fail("nothing was committed in a minute")
