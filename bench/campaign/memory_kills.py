"""A worker that takes too much memory is killed, as the kernel does: its sample is a failed row, and the run goes on to its end.

The killer is this process. Like the kernel's it sends SIGKILL to the process that holds most; it needs no control group and no root.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil

from audit.store.maintain.verify import verify
from audit.store.read.reader import Reader
from bench.campaign.children import Child, command
from bench.campaign.engine_kills import import_engine
from bench.campaign.stores import make_fresh, read_column
from bench.campaign.trial import Trial

GOAL = 100
COUNTS = "runs with workers killed for their memory"
_ROOT = Path(__file__).parent.parent.parent
_SAMPLES = 16
_GREED_BYTES = 160 * 2**20
_LONGEST = 120.0
_PIPELINE = '''
import time
import torch


def greedy(picture):
    """Take memory for ever at some pictures."""
    if sum(picture.convert("L").tobytes()) % {every} == 0:
        held = bytearray({greed})
        held[::4096] = bytes(len(held[::4096])).replace(b"\\0", b"x")
        time.sleep(60)
    return torch.zeros(4)


pipeline = greedy
'''


def run(trial: Trial) -> None:
    import_engine()
    place = trial.folder / "s"
    while trial.more():
        make_fresh(place)
        file = trial.folder / f"greedy{trial.tried}.py"
        file.write_text(_PIPELINE.format(every=trial.chance.choice((5, 7, 11)), greed=_GREED_BYTES))
        workers = trial.chance.choice((1, 2))
        child = Child(lambda _, file=file, w=workers: _record(place, file, w))
        killed = _kill_greedy(child)
        code, _ = child.end()
        trial.tried += 1
        trial.counts["workers killed"] += killed
        if (wrong := _judge(trial, place, killed, code)) is not None:
            trial.fail(f"try {trial.tried}: {wrong}")
        file.unlink()


def _record(place: Path, pipeline: Path, workers: int) -> int:
    return command(
        *("run", "--dataset", str(_ROOT / "fixtures" / "digits" / "test"), "--pipeline", f"{pipeline}:pipeline"),
        *("--store", str(place), "--workers", str(workers), "--limit", str(_SAMPLES), "--batch-size", "4"),
        *("--capture", "digest", "--max-failures", "100%"),
    )


def _kill_greedy(child: Child) -> int:
    """Kill every worker that grows; return how many."""
    killed, end = 0, time.monotonic() + _LONGEST
    main = psutil.Process(child.pid)
    while not child.wait(0.05):
        if time.monotonic() > end:
            child.kill()
        with contextlib.suppress(psutil.Error):
            # A worker that was forked begins with the memory of the main process.
            most = main.memory_info().rss + _GREED_BYTES // 2
            for worker in main.children():
                if worker.memory_info().rss > most:
                    worker.kill()
                    killed += 1
    return killed


def _judge(trial: Trial, place: Path, killed: int, code: int) -> str | None:
    with Reader(str(place)) as reader:
        if damage := verify(reader):
            return f"verify: {damage[0]}"
        row = reader.runs()[-1]
        # Not by SQL: this process must not start DuckDB's threads.
        failed = sum(status != "ok" for status in read_column(reader, row.run_id, "samples", "status"))
    trial.counts["samples lost to it"] += failed
    if row.status != "complete" or row.samples != _SAMPLES or code not in (0, 1):
        return f"exit code {code}, the run is {row.status} with {row.samples} samples"
    return f"{killed} workers were killed, and no sample failed" if killed and not failed else None
