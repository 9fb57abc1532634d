"""A store that the first release wrote stays usable: it opens, traces, replays, compares, resumes and compacts.

`format_v1/` was recorded in `/data` by format version 1 and is never written again. Each test works on a copy whose recipes
name the copy's folder instead.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import audit
from audit.store import schema

HERE = Path(__file__).parent
RUNS = {"baseline": 21, "augmented": 21, "loop": 40}


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    """Copy the store, its pictures, its code and its checkpoint, and let the recipes name the copy."""
    shutil.copytree(HERE / "format_v1", tmp_path, dirs_exist_ok=True)
    shutil.copy(HERE.parent.parent / "fixtures" / "digits.pt", tmp_path / "model.pt")
    for manifest in tmp_path.glob("lineage/runs/*/run.json"):
        manifest.write_text(manifest.read_text().replace('"/data/', f'"{tmp_path}/'))
    return tmp_path


def test_it_opens_and_answers(version_1: Path) -> None:
    store = audit.open(version_1 / "lineage")
    assert {run.name: run.samples for run in store.runs()} == RUNS
    counts = dict(store.sql("SELECT name, count(*) FROM lineage JOIN runs USING (run_id) GROUP BY name").fetchall())
    assert counts == RUNS
    assert store.sql("SELECT count(*) FROM wrong_predictions", run="augmented").fetchone() == (8,)
    for table in ("stages", "stage_outputs", "payloads", "activations", "steps", "rng", "failures", "per_class"):
        assert store.sql(f"SELECT count(*) FROM {table}").fetchone()[0] > 0, table
    assert store.verify() == []


def test_every_stage_output_can_be_had_back(version_1: Path) -> None:
    store = audit.open(version_1 / "lineage")
    trace = store.trace("augmented", index=4)
    assert [stage["name"] for stage in trace.as_json()["stages"]][:3] == ["load", "Grayscale", "RandomRotation"]
    last = trace.value(trace.as_json()["stages"][-1]["stage"])
    assert np.asarray(last).shape == (1, 16, 16)


@pytest.mark.parametrize("name", RUNS)
def test_it_replays(version_1: Path, name: str) -> None:
    store = audit.open(version_1 / "lineage")
    dataset = f"{version_1 / 'loop.py'}:dataset" if name == "loop" else None
    if name == "loop":
        builder = version_1 / "loop.py"
        builder.write_text(builder.read_text().replace('root: str = "digits"', f'root: str = "{version_1}/digits"'))
    # It was recorded elsewhere, before recipes were signed.
    replay = store.replay(name, dataset=dataset, trust=True)
    assert (replay.checked, replay.identical) == (RUNS[name], RUNS[name])


def test_it_compares(version_1: Path) -> None:
    store = audit.open(version_1 / "lineage")
    diff = store.diff("baseline", "augmented")
    assert diff.matched == 21
    assert diff.regressions == 8
    assert diff.first_divergent_stage == {"RandomRotation": 5, "RandomHorizontalFlip": 6, "Normalize": 9}


def test_it_can_be_written_to(version_1: Path) -> None:
    """New runs land beside the old ones, and compacting a run of version 1 loses nothing."""
    location = version_1 / "lineage"
    audit.run(version_1 / "digits", pipeline=version_1 / "augmented.py", store=location, name="again", workers=0)
    store = audit.open(location)
    before = store.sql("FROM predictions ORDER BY ALL", run="loop").fetchall()
    store.compact("loop")
    assert audit.open(location).sql("FROM predictions ORDER BY ALL", run="loop").fetchall() == before
    diff = store.diff("augmented", "again")
    assert diff.matched == 21
    assert diff.first_divergent_stage == {}


def test_columns_that_came_later_are_null(version_1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that lacks a column reads as NULL there: in a view, in a look-up by index, and after a merge."""
    location = version_1 / "lineage"
    wider = schema.SCHEMAS["predictions"].append(pa.field("later", pa.string()))
    monkeypatch.setitem(schema.SCHEMAS, "predictions", wider)
    monkeypatch.setitem(
        schema.ADDED_COLUMNS, "predictions", {**schema.ADDED_COLUMNS.get("predictions", {}), "later": 2}
    )
    store = audit.open(location)
    audit.run(
        version_1 / "digits",
        model=version_1 / "model.pt",
        pipeline=version_1 / "plain.py",
        store=location,
        name="new",
        workers=0,
    )
    store = audit.open(location)
    query = "SELECT name, count(*), count(later) FROM predictions JOIN runs USING (run_id) GROUP BY name ORDER BY name"
    counts = [("augmented", 20, 0), ("baseline", 20, 0), ("loop", 40, 0), ("new", 20, 0)]
    assert store.sql(query).fetchall() == counts
    for name in ("baseline", "new"):
        assert store.trace(name, index=3).as_json()["prediction"]["correct"] is True
    store.compact("loop")
    assert audit.open(location).sql(query).fetchall() == counts
