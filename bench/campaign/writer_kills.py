"""A process that writes to a store is killed at one of its store calls: what was committed must be there.

Most of them write a run, some of these one that was killed before; the others merge, tag, clean or remove a run.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from audit.errors import AuditError
from audit.store.write.writer import RunWriter
from bench.campaign.calls import watch_calls
from bench.campaign.children import Child
from bench.campaign.stores import BATCH, find_loss, make_fresh, visits, write_run
from bench.campaign.trial import Trial
from bench.campaign.upkeep import REMOVE, UPKEEP, keep_up

GOAL = 10_000
COUNTS = "kills of a writer at a store call"
#: How many calls a run of so many commits makes, and an upkeep.
_CALLS = 70
_UPKEEP_CALLS = 20
_COMMITS = 3
#: So many processes write to one store, then another is begun.
_TRIES = 4


def run(trial: Trial) -> None:
    template = make_fresh(trial.folder / "template")
    first = write_run(template, commits=2)
    place, resumed = trial.folder / "s", ""
    expected: dict[str, int] = {}
    while trial.more():
        if trial.tried % _TRIES == 0:
            # One store in two is begun by the process that dies.
            is_new = trial.chance.random() < 0.5
            make_fresh(place, None if is_new else template)
            expected, resumed = ({} if is_new else {first: 2 * BATCH}), ""
        touched: str | None = first
        what = trial.chance.choice(list(UPKEEP)) if first in expected and trial.chance.random() < 0.4 else ""
        if what:
            _kill_upkeep(trial, place, first, what)
            trial.counts[f"in {what}"] += 1
            if what == REMOVE:
                del expected[first]
        else:
            touched, samples = _killed_writer(place, trial.chance.randrange(_CALLS), resumed)
            expected |= {touched: samples} if touched is not None else {}
            trial.counts["commits before the kill"] += samples // BATCH
            resumed = touched if touched is not None and trial.chance.random() < 0.3 else ""
            trial.counts["runs taken up again"] += bool(resumed)
        if not os.path.exists(place / "audit.json"):
            trial.counts["killed before there was a store"] += 1
        # The whole store is verified after the last of its tries.
        elif (wrong := find_loss(place, expected, None if trial.tried % _TRIES == _TRIES - 1 else touched)) is not None:
            trial.fail(f"try {trial.tried}, {what or 'write'}: {wrong}")
        trial.tried += 1


def _kill_upkeep(trial: Trial, place: Path, run_id: str, what: str) -> None:
    at = trial.chance.randrange(_UPKEEP_CALLS)

    def work(_: int) -> None:
        with _die_at(place, at):
            keep_up(what, place, run_id)

    Child(lambda out: _to_death(lambda: work(out))).end()


def _killed_writer(place: Path, at: int, resumed: str) -> tuple[str | None, int]:
    """Return the run's id, and how many samples it had committed; it dies at its call of that number, or soon after."""
    _, words = Child(lambda out: _to_death(lambda: _write(place, at, resumed, out))).end()
    return (words[0], int(words[-1])) if words else (None, 0)


def _write(place: Path, at: int, resumed: str, out: int) -> None:
    with _die_at(place, at):
        writer = RunWriter.resume(str(place), resumed) if resumed else RunWriter.create(str(place))
        first = writer.run.samples
        os.write(out, f"{writer.run.run_id} {first} ".encode())
        for number in range(_COMMITS):
            writer.append(visits(writer.run.run_id, first + number * BATCH))
            writer.flush()
            os.write(out, f"{first + (number + 1) * BATCH} ".encode())
        writer.finish("complete")


def _to_death(work: Callable[[], None]) -> None:
    """Do something and die by SIGKILL, at the latest when it is done."""
    try:
        with contextlib.suppress(AuditError):
            work()
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def _die_at(place: Path, at: int) -> contextlib.AbstractContextManager[None]:
    left = at

    def die(_: str, __: tuple[str, ...]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return watch_calls(str(place), die)
