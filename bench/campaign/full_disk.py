"""A disk that fills up, of a few hundred kilobytes: the writer says so, and what was committed stays. Needs root, for the mount."""

from __future__ import annotations

import os
from pathlib import Path

from audit.errors import AuditError
from audit.store.write.writer import RunWriter
from bench.campaign.mounts import mount_tmpfs
from bench.campaign.stores import BATCH, find_loss, visits
from bench.campaign.trial import Trial

GOAL = 500
COUNTS = "disks filled"


def run(trial: Trial) -> None:
    disk = trial.folder / "disk"
    disk.mkdir()
    while trial.more():
        with mount_tmpfs(disk, trial.chance.randrange(80, 400)) as worked:
            if not worked:
                trial.counts["cannot mount here"] = 1
                return
            _fill(trial, disk / "s")


def _fill(trial: Trial, place: Path) -> None:
    expected: dict[str, int] = {}
    writer = None
    try:
        writer = RunWriter.create(str(place))
        run_id = writer.run.run_id
        for number in range(2_000):
            writer.append(visits(run_id, number * BATCH))
            writer.flush()
            expected[run_id] = (number + 1) * BATCH
        trial.fail("the disk was never full")
    except AuditError as error:
        if "disk is full" not in str(error):
            trial.fail(f"it does not say that the disk is full: {error}")
        if writer is not None:
            writer.abandon()
    trial.tried += 1
    trial.counts["commits"] += sum(expected.values()) // BATCH
    if os.path.exists(place / "audit.json") and (wrong := find_loss(place, expected)) is not None:
        trial.fail(wrong)
