"""`audit run` is killed at a random moment, with 0 and with 2 workers: what was committed is there, and `--resume` ends the run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch  # noqa: F401 - loaded here once, not in each child

import audit
from bench.campaign.stores import fresh
from bench.campaign.trial import Trial

GOAL = 1_000
COUNTS = "kills of audit run"
_ROOT = Path(__file__).parent.parent.parent
_SAMPLES = 24


def run(trial: Trial) -> None:
    place = fresh(trial.folder / "s")
    _record(place, 0)  # what is imported late is imported here
    longest = 2.0
    while trial.more():
        fresh(place)
        workers = trial.chance.choice((0, 2))
        child = os.fork()
        if not child:
            os.setsid()
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 2)
            try:
                _record(place, workers)
            finally:
                os._exit(0)
        time.sleep(trial.chance.uniform(0.0, longest))
        os.killpg(child, signal.SIGKILL) if os.getpgid(child) == child else os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        trial.tried += 1
        trial.counts[f"with {workers} workers"] += 1
        _judge(trial, place)


def _record(place: Path, workers: int) -> None:
    audit.run(
        str(_ROOT / "fixtures" / "digits" / "test"),
        pipeline=str(_ROOT / "pipelines" / "digits.py"),
        store=str(place),
        workers=workers,
        limit=_SAMPLES,
        batch_size=4,
        commit_every=0.01,
        capture="digest",
    )


def _judge(trial: Trial, place: Path) -> None:
    if not (place / "audit.json").exists():
        trial.counts["before there was a store"] += 1
        return
    with audit.open(place) as store:
        if damage := store.verify():
            trial.fail(f"verify: {damage[0]}")
            return
        runs = store.runs()
        if not runs:
            trial.counts["before there was a run"] += 1
            return
        query = "SELECT count(*), count(DISTINCT index) FROM samples"
        rows, distinct = store.sql(query).fetchall()[0]
        trial.counts["samples committed before the kill"] += rows
        whole = store.sql("SELECT count(*) FROM (SELECT index FROM stage_outputs GROUP BY index)").fetchall()[0][0]
    if rows != distinct or whole != rows or rows != runs[0].samples:
        trial.fail(f"{rows} samples, {distinct} distinct, {whole} with stages, {runs[0].samples} in the manifest")
    if trial.tried % 10 == 0:
        resumed = audit.resume(runs[0].run_id, store=place) if runs[0].status != "complete" else runs[0]
        trial.counts["taken up again"] += runs[0].status != "complete"
        if resumed.samples != _SAMPLES:
            trial.fail(f"taken up again, it has {resumed.samples} samples")
