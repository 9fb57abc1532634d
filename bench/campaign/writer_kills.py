"""A writer is killed at one of its store calls: what it had committed must be there, and the run can be taken up again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from audit.errors import AuditError
from audit.store.write.writer import RunWriter
from bench.campaign.calls import watched
from bench.campaign.stores import BATCH, fresh, lost, visits, write_run
from bench.campaign.trial import Trial

GOAL = 10_000
COUNTS = "kills of a writer at a store call"
_CALLS = 130
_COMMITS = 6


def run(trial: Trial) -> None:
    write_run(fresh(trial.folder / "warm"))  # what is imported late is imported here, not in each child
    place, resumed = fresh(trial.folder / "s"), ""
    while trial.more():
        if trial.tried % 10 == 0:
            if trial.tried and (wrong := lost(place, None, 0)) is not None:
                trial.fail(f"all runs after try {trial.tried}: {wrong}")
            resumed = ""
            fresh(place)
        run_id, samples = _killed_writer(place, trial.chance.randrange(_CALLS), resumed)
        if run_id is None and not os.path.exists(place / "audit.json"):
            trial.counts["killed before there was a store"] += 1
        elif (wrong := lost(place, run_id, samples)) is not None:
            trial.fail(f"try {trial.tried}: {wrong}")
        trial.tried += 1
        trial.counts["commits before the kill"] += samples // BATCH
        resumed = run_id if run_id is not None and trial.chance.random() < 0.3 else ""
        trial.counts["runs taken up again"] += bool(resumed)


def _killed_writer(place: Path, at: int, resumed: str) -> tuple[str | None, int]:
    """Return the run's id, and how many samples it had committed; it dies at its call of that number, or soon after."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(ours)
            _write(place, at, resumed, theirs)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(theirs)
    with open(ours, "rb") as told:
        words = told.read().decode().split()
    os.waitpid(child, 0)
    return (words[0], int(words[-1])) if words else (None, 0)


def _write(place: Path, at: int, resumed: str, told: int) -> None:
    left = at

    def die(_: str, __: tuple[str, ...]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    with watched(str(place), die):
        try:
            writer = RunWriter.resume(str(place), resumed) if resumed else RunWriter.create(str(place))
        except AuditError:
            return
        first = writer.run.samples
        os.write(told, f"{writer.run.run_id} {first} ".encode())
        for number in range(_COMMITS):
            writer.append(visits(writer.run.run_id, first + number * BATCH))
            writer.flush()
            os.write(told, f"{first + (number + 1) * BATCH} ".encode())
        writer.finish("complete")
