"""Shared memory or the temporary folder is full: a command works all the same, or says in a sentence what is wrong.

Each command runs in a forked process that has mounted a small file system there for itself alone. Needs root, for the mount.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from audit.store.maintain.verify import verify
from audit.store.read.reader import Reader
from bench.campaign.children import Child, command
from bench.campaign.engine_kills import import_engine, record
from bench.campaign.mounts import mount_privately
from bench.campaign.stores import make_fresh
from bench.campaign.trial import Trial

GOAL = 200
COUNTS = "commands with full shared memory or a full temporary folder"
_SHARED_MEMORY = "/dev/shm"
_LONGEST = 120.0
_CANNOT_MOUNT = 77
#: What is asked of a store with two runs while the temporary folder is full.
_QUESTIONS = (
    *(
        ("diff", "latest~1", "latest"),
        ("replay", "latest"),
        ("check", "latest"),
        ("report", "latest", "-o", "{out}.html"),
    ),
    *(("sql", "SELECT count(*) FROM samples"), ("trace", "3"), ("store", "compact", "latest"), ("store", "verify")),
    *(("export", "latest", "--to", "csv", "-o", "{out}.csv"), ("runs",), ("embed", "latest", "--layer", "pixels")),
)


def run(trial: Trial) -> None:
    import_engine()
    # Not in shared memory, which is covered while a command runs.
    folder = Path(tempfile.mkdtemp(prefix="audit-campaign-", dir="/var/tmp"))
    try:
        two = folder / "two"
        for _ in range(2):
            assert Child(lambda _: record(two, 0)).end()[0] == 0, "audit run works"
        place = folder / "s"
        while trial.more() and not trial.counts["cannot mount here"]:
            if trial.chance.random() < 0.5:
                _fill_shared(trial, make_fresh(place))
            else:
                _fill_temporary(trial, make_fresh(place, two), make_fresh(folder / "small"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fill_shared(trial: Trial, place: Path) -> None:
    workers, method = trial.chance.choice((0, 1, 2)), trial.chance.choice(("fork", "fork", "spawn"))
    size = trial.chance.choice((4, 16, 40, 48, 64, 100, 200, 400))
    more = ("--capture", trial.chance.choice(("digest", "full")), "--start-method", method)
    what = f"run --workers {workers} {' '.join(more)} with {size} kB of shared memory"
    _try(trial, place, what, _SHARED_MEMORY, size, lambda: record(place, workers, *more))


def _fill_temporary(trial: Trial, place: Path, small: Path) -> None:
    words = trial.chance.choice(_QUESTIONS)
    given = [word.format(out=place.parent / "answer") for word in words]

    def work() -> int:
        os.environ["TMPDIR"], tempfile.tempdir = str(small), None
        (small / "in-the-way").write_bytes(bytes(4096))
        return command(*given, "--store", str(place))

    _try(trial, place, f"{' '.join(words)} with a full temporary folder", str(small), 4, work)


def _try(trial: Trial, place: Path, what: str, covered: str, size: int, work: Callable[[], int]) -> None:
    said = place.parent / "said"

    def child(_: int) -> int:
        return work() if mount_privately(covered, size) else _CANNOT_MOUNT

    started = Child(child, str(said))
    if not started.wait(_LONGEST):
        trial.fail(f"{what}: it hangs")
        started.kill()
    code, _ = started.end()
    if code == _CANNOT_MOUNT:
        trial.counts["cannot mount here"] = 1
        return
    trial.tried += 1
    trial.counts["worked all the same" if code == 0 else "refused with a sentence"] += 1
    text = said.read_text(errors="replace")
    unexplained = "Traceback" in text or "internal error" in text or (code and "audit: " not in text)
    if code < 0 or code > 2 or unexplained:
        trial.fail(f"{what}: exit code {code}: {text[-600:]!r}")
    elif (place / "audit.json").exists():
        with Reader(str(place)) as reader:
            if damage := verify(reader):
                trial.fail(f"{what}: {damage[0]}")
