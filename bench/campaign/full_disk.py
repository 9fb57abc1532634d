"""A disk that fills up, of a few hundred kilobytes: the writer says so, and what was committed stays. Needs root, for the mount."""

from __future__ import annotations

import os
import subprocess

from audit.errors import AuditError
from audit.store.write.writer import RunWriter
from bench.campaign.stores import BATCH, lost, visits
from bench.campaign.trial import Trial

GOAL = 500
COUNTS = "disks filled"


def run(trial: Trial) -> None:
    disk = trial.folder / "disk"
    disk.mkdir()
    while trial.more():
        size = trial.chance.randrange(96, 700)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)], capture_output=True)
        if done.returncode:
            trial.counts["cannot mount here"] = 1
            return
        try:
            _fill(trial, str(disk / "s"))
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)


def _fill(trial: Trial, place: str) -> None:
    run_id, samples = None, 0
    try:
        writer = RunWriter.create(place)
        run_id = writer.run.run_id
        for number in range(2_000):
            writer.append(visits(run_id, number * BATCH))
            writer.flush()
            samples += BATCH
        trial.fail("the disk was never full")
    except AuditError as error:
        if "disk is full" not in str(error):
            trial.fail(f"it is not told that the disk is full: {error}")
        if run_id is not None:
            writer.abandon()
    trial.tried += 1
    trial.counts["commits"] += samples // BATCH
    if (
        os.path.exists(f"{place}/audit.json")
        and (wrong := lost(trial.folder / "disk" / "s", run_id, samples)) is not None
    ):
        trial.fail(wrong)
