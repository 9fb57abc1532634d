"""The clock jumps, backwards too, while runs are written: nothing is lost, and runs stay in the order in which they were begun."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, tzinfo
from unittest.mock import patch

from audit.store.read.reader import Reader
from audit.store.write import writer as writer_module
from audit.store.write.writer import RunWriter
from bench.campaign.stores import BATCH, find_loss, make_fresh, visits
from bench.campaign.trial import Trial

GOAL = 1_000
COUNTS = "runs written while the clock jumps"
_RUNS = 5
_COMMITS = 2


class JumpingTime(datetime):
    """The time of day, so many seconds away from the true one."""

    offset = 0.0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + timedelta(seconds=cls.offset)


def run(trial: Trial) -> None:
    real = time.time
    clocks = (
        patch.object(writer_module, "datetime", JumpingTime),
        patch("time.time", lambda: real() + JumpingTime.offset),
    )
    with clocks[0], clocks[1]:
        _write_runs(trial)


def _write_runs(trial: Trial) -> None:
    place = make_fresh(trial.folder / "s")
    begun: list[str] = []
    while trial.more():
        if len(begun) == _RUNS:
            begun = []
            make_fresh(place)
        writer = RunWriter.create(str(place))
        begun.append(writer.run.run_id)
        for number in range(_COMMITS):
            JumpingTime.offset = trial.chance.choice((-1, 1)) * trial.chance.choice((0.5, 60, 86_400, 1e8))
            writer.append(visits(writer.run.run_id, number * BATCH))
            writer.flush()
        writer.finish("complete")
        trial.tried += 1
        if (wrong := find_loss(place, {begun[-1]: _COMMITS * BATCH})) is not None:
            trial.fail(f"run {trial.tried}: {wrong}")
        with Reader(str(place)) as reader:
            if [row.run_id for row in reader.runs()] != begun or reader.run("latest").run_id != begun[-1]:
                trial.fail(f"run {trial.tried}: the runs are in another order")
