"""Eight readers beside a writer that commits, merges and removes: each answer is that of some commit, and none goes back."""

from __future__ import annotations

import os
import signal
import time
import traceback
from pathlib import Path

from audit.errors import StoreDamaged, StoreError
from audit.store.maintain.compact import compact, remove
from audit.store.read.reader import Reader
from audit.store.write.writer import RunWriter
from bench.campaign.stores import BATCH, find_loss, make_fresh, visits
from bench.campaign.trial import Trial

GOAL = 600
COUNTS = "seconds of 8 readers beside a writer, merges and removals"
_READERS = 8
#: The store keeps so many runs; older ones are removed.
_KEPT_RUNS = 6
#: Seconds between two looks of one reader: two cores serve all of them.
_PAUSE = 0.25
_QUERY = (
    """SELECT (SELECT count(*) FROM samples WHERE run_id = $1), (SELECT count(*) FROM predictions WHERE run_id = $1)"""
)


def run(trial: Trial) -> None:
    place = make_fresh(trial.folder / "s")
    first = RunWriter.create(str(place))
    first.finish("complete")
    pipes = []
    for _ in range(_READERS):
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            os.close(ours)
            try:
                _read(place, theirs)
            finally:
                os._exit(1)
        os.close(theirs)
        pipes.append((child, ours))
    while trial.more():
        _write_and_merge(trial, place)
        trial.tried = int(trial.seconds)
    for child, ours in pipes:
        os.kill(child, signal.SIGTERM)
        with open(ours) as lines:
            for line in lines:
                kind, _, rest = line.rstrip("\n").partition(" ")
                if kind == "answers":
                    trial.counts["answers"] += int(rest)
                elif kind == "reported":
                    trial.counts["answered that a run was merged or removed meanwhile"] += int(rest)
                else:
                    trial.fail(rest)
        os.waitpid(child, 0)


def _write_and_merge(trial: Trial, place: Path) -> None:
    writer = RunWriter.create(str(place))
    for number in range(12):
        writer.append(visits(writer.run.run_id, number * BATCH))
        writer.flush()
    writer.finish("complete")
    with Reader(str(place)) as reader:
        compact(reader, writer.run.run_id)
        trial.counts["merges"] += 1
        for row in reader.runs()[:-_KEPT_RUNS]:
            remove(reader, row.run_id)
            trial.counts["removals"] += 1
    if (wrong := find_loss(place, {writer.run.run_id: 12 * BATCH})) is not None:
        trial.fail(wrong)


def _read(place: Path, out: int) -> None:
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    answers, reported = 0, 0
    seen: dict[str, int] = {}
    while not ended:
        try:
            with Reader(str(place)) as reader:
                for row in reader.runs()[-3:]:
                    samples, predictions = reader.sql(_QUERY, parameters=[row.run_id]).fetchall()[0]
                    answers += 1
                    if samples != predictions or samples % BATCH or samples < seen.get(row.run_id, 0):
                        os.write(out, f"bad {row.run_id}: {samples} samples, {predictions} predictions\n".encode())
                    seen[row.run_id] = samples
        except StoreDamaged as error:
            os.write(out, f"bad StoreDamaged: {error}\n".encode())
        except StoreError:
            reported += 1
        except Exception:
            os.write(out, f"bad {traceback.format_exc()!r}\n".encode())
        time.sleep(_PAUSE)
    os.write(out, f"answers {answers}\nreported {reported}\n".encode())
    os._exit(0)
