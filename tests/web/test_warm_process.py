"""Replays from the page share one process with torch loaded, and nothing else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest

from audit.api import Store
from audit.errors import AuditError
from audit.web.replays import Replays
from audit.web.warm_process import WarmProcess

pytestmark = pytest.mark.workers


def _next_child(parent: psutil.Process, known: set[int]) -> psutil.Process:
    """Return the child that a process starts next."""
    for _ in range(2_000):
        found = [child for child in parent.children() if child.pid not in known]
        if found:
            return found[0]
        time.sleep(0.002)
    raise AssertionError("no child was started")


def _suspend_a_replay(warm: psutil.Process, replay: Callable[[], object]) -> psutil.Process:
    """Suspend the child that makes a replay, which fails then; once more where the child has ended before. Return it."""
    for _ in range(20):
        known = {child.pid for child in warm.children()}
        with ThreadPoolExecutor(1) as pool:
            hanging = pool.submit(replay)
            child = _next_child(warm, known)
            with contextlib.suppress(psutil.NoSuchProcess):
                child.suspend()
            error = hanging.exception()
        if error is not None:
            assert isinstance(error, AuditError)
            assert "took longer" in str(error)
            return child
    raise AssertionError("no child could be suspended")


def test_one_process_for_all_replays_and_a_child_for_each(photos: Path) -> None:
    with Store(str(photos)) as store:
        run = store.run("digests").run_id
    process = WarmProcess()
    replays = Replays(str(photos), process)
    try:
        assert not process.is_warm
        verdict, previews = replays.replay(run, 1, 0, 0)
        assert verdict["identical"]
        assert len(previews) == verdict["stages"] == 7
        assert process._process is not None
        warm = psutil.Process(process._process.pid)
        spent = warm.cpu_times()
        again, _ = replays.replay(run, 2, 0, 0)
        assert again["identical"]
        now = warm.cpu_times()
        # The child did the work: the warm process itself loads nothing more and runs nothing of the pipeline.
        assert now.user + now.system - spent.user - spent.system < 0.5
        process.seconds = 10.0  # a busy machine may need seconds to fork
        child = _suspend_a_replay(warm, partial(replays.replay, run, 3, 0, 0))
        child.wait(60)
        process.seconds = 120.0
        verdict, _ = replays.replay(run, 3, 0, 0)
        assert verdict["identical"]
        assert warm.pid == process._process.pid
        with pytest.raises(AuditError, match="no sample"):
            replays.replay(run, 10_000, 0, 0)
    finally:
        process.close()
    for _ in range(50):
        if not warm.is_running():
            break
        time.sleep(0.1)
    assert not warm.is_running()
