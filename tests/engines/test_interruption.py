"""Killed at any instant: the store opens, earlier runs are whole, and the killed run resumes to the rows it should have."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from warm_programs import warm_audit

import audit
from audit.engines.local import resume_locally
from audit.errors import NotFound, UsageError

pytestmark = pytest.mark.workers

#: A run that is to be interrupted waits near its end, so that it cannot end before.
SLOW = """
import os, time
calls = 0
def slowly(value):
    global calls
    calls += 1
    while calls > 50 and "WAIT_TO_BE_INTERRUPTED" in os.environ:
        time.sleep(0.01)
    time.sleep(0.01)
    return value
transform = transforms.Compose([transforms.RandomCrop(12), slowly, transforms.ToTensor()])
"""
#: Time and place of work differ between two runs by nature; nothing else may.
ROWS = {
    "samples": "* EXCLUDE (run_id, worker)",
    "stage_outputs": "* EXCLUDE (run_id, microseconds)",
    "payloads": "* EXCLUDE (run_id)",
    "stages": "* EXCLUDE (run_id)",
}


def rows_of(store: Path, run: str | None = None) -> dict[str, list[Any]]:
    with audit.open(store) as opened:
        chosen = run or opened.runs()[-1].run_id
        return {
            table: sorted(opened.sql(f"SELECT {columns} FROM {table}", run=chosen).fetchall(), key=repr)
            for table, columns in ROWS.items()
        }


def start(images: Path, pipeline: Path, store: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [warm_audit(), "run", "--dataset", str(images), "--pipeline", str(pipeline)]
    options = ["--store", str(store), "--workers", "1", "--batch-size", "2", "--commit-every", "0.1"]
    return subprocess.Popen(
        [*command, *options, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"WAIT_TO_BE_INTERRUPTED": "1"},
    )


def wait_for_samples(store: Path, count: int, process: subprocess.Popen[bytes], runs: int = 1) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if (store / "audit.json").exists():
            with audit.open(store) as opened:
                if len(opened.runs()) >= runs and opened.runs()[-1].samples >= count:
                    return
        time.sleep(0.02)


def test_sigkill_at_random_moments_and_resume(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    images, pipeline = pictures(count=60), write_pipeline(SLOW)
    earlier = audit.run(images, pipeline=pipeline, store=tmp_path / "lineage", workers=0, batch_size=2, name="earlier")
    undisturbed = rows_of(tmp_path / "lineage")
    assert len(undisturbed["samples"]) == 60
    chance = random.Random(0)
    for number in range(3):
        process = start(images, pipeline, tmp_path / "lineage")
        try:
            wait_for_samples(tmp_path / "lineage", chance.randrange(1, 30), process, runs=number + 2)
            time.sleep(chance.random() * 0.1)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        with audit.open(tmp_path / "lineage") as store:
            assert store.verify() == []
            killed = store.runs()[-1]
            assert killed.status == "interrupted"
            assert killed.run_id != earlier.run_id
            # As far as it got, it is whole: every sample has all its stages.
            counts = store.sql(
                "SELECT count(*), count(DISTINCT stage) FROM stage_outputs GROUP BY index", run=killed.run_id
            ).fetchall()
            assert set(counts) <= {(4, 4)}
            assert len(counts) == killed.samples < 60
        assert rows_of(tmp_path / "lineage", earlier.run_id) == undisturbed
        resumed = resume_locally(str(tmp_path / "lineage"), killed.run_id)
        assert (resumed.run_id, resumed.status, resumed.samples) == (killed.run_id, "complete", 60)
        assert rows_of(tmp_path / "lineage", killed.run_id) == undisturbed


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_readable_and_resumes(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path, kind: signal.Signals
) -> None:
    images, pipeline = pictures(count=60), write_pipeline(SLOW)
    process = start(images, pipeline, tmp_path / "lineage")
    wait_for_samples(tmp_path / "lineage", 4, process)
    os.kill(process.pid, kind)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert b"audit run --resume" in errors
    with audit.open(tmp_path / "lineage") as store:
        run = store.runs()[0]
        assert run.status == "interrupted"
        assert 0 < run.samples < 60
        assert store.sql("SELECT count(*) FROM samples").fetchone() == (run.samples,)
    done = subprocess.run(
        [warm_audit(), "run", "--resume", "last", "--store", str(tmp_path / "lineage"), "--json"],
        capture_output=True,
        check=True,
    )
    assert b'"status": "complete"' in done.stdout
    audit.run(images, pipeline=pipeline, store=tmp_path / "other", workers=0, batch_size=2)
    assert rows_of(tmp_path / "lineage") == rows_of(tmp_path / "other")


def test_what_cannot_be_resumed(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    images, pipeline = pictures(count=60), write_pipeline(SLOW)
    store = str(tmp_path / "lineage")
    process = start(images, pipeline, tmp_path / "lineage")
    wait_for_samples(tmp_path / "lineage", 2, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (images / "class_0" / "img_000.png").unlink()
    with pytest.raises(UsageError, match="dataset has changed"):
        resume_locally(store, None)
    complete = audit.run(images, pipeline=pipeline, store=store, workers=0)
    with pytest.raises(UsageError, match="complete"):
        resume_locally(store, complete.run_id)
    with pytest.raises(NotFound):
        resume_locally(store, "nothing")
