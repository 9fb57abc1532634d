"""What has been gathered is committed when it is due, even if nothing arrives."""

from __future__ import annotations

import time
from pathlib import Path

from store_cases import visit_tables

import audit
from audit.store.write.background import BackgroundWriter
from audit.store.write.writer import RunWriter


def test_rows_are_committed_by_the_clock(tmp_path: Path) -> None:
    writer = RunWriter.create(str(tmp_path / "s"))
    writer.commit_every(0.2)
    background = BackgroundWriter(writer)
    run_id = writer.run.run_id
    background.submit(lambda taken: taken.append(visit_tables(run_id, [0, 1, 2])))
    deadline = time.monotonic() + 30
    seen = 0
    while not seen and time.monotonic() < deadline:
        time.sleep(0.2)
        with audit.open(tmp_path / "s") as store:
            seen = store.run(run_id).samples
    assert seen == 3, "the loop has sent nothing more, and has not ended the run"
    commits = len(list((tmp_path / "s" / "runs" / run_id / "log").glob("*.json")))
    time.sleep(1.5)
    assert len(list((tmp_path / "s" / "runs" / run_id / "log").glob("*.json"))) == commits, "nothing new, no commit"
    assert background.finish("complete").samples == 3


def test_a_failure_by_the_clock_is_reported_like_any_other(tmp_path: Path) -> None:
    writer = RunWriter.create(str(tmp_path / "s"))
    writer.commit_every(0.1)
    background = BackgroundWriter(writer)
    folder = tmp_path / "s" / "runs" / writer.run.run_id / "log"
    folder.write_text("in the way of the log")
    background.submit(lambda taken: taken.append(visit_tables(taken.run.run_id, [0])))
    deadline = time.monotonic() + 30
    while background.error is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert background.error is not None
