"""The clock jumps, backwards too, while runs are written: nothing is lost, and runs stay in the order in which they were begun."""

from __future__ import annotations

import time

from audit.store.read.reader import Reader
from audit.store.write.writer import RunWriter
from bench.campaign.stores import BATCH, fresh, lost, visits
from bench.campaign.trial import Trial

GOAL = 1_000
COUNTS = "runs written while the clock jumps"
_RUNS = 10


def run(trial: Trial) -> None:
    place, real = fresh(trial.folder / "s"), time.time
    begun: list[str] = []
    offset = [0.0]
    time.time = lambda: real() + offset[0]
    try:
        while trial.more():
            if len(begun) == _RUNS:
                begun = []
                fresh(place)
            writer = RunWriter.create(str(place))
            begun.append(writer.run.run_id)
            for number in range(3):
                offset[0] = trial.chance.choice((-1, 1)) * trial.chance.choice((0.5, 60, 86_400, 1e8))
                writer.append(visits(writer.run.run_id, number * BATCH))
                writer.flush()
            writer.finish("complete")
            trial.tried += 1
            if (wrong := lost(place, begun[-1], 3 * BATCH)) is not None:
                trial.fail(f"run {trial.tried}: {wrong}")
            with Reader(str(place)) as reader:
                if [row.run_id for row in reader.runs()] != begun or reader.run("latest").run_id != begun[-1]:
                    trial.fail(f"run {trial.tried}: the runs are in another order")
    finally:
        time.time = real
