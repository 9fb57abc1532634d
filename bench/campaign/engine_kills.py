"""`audit run` is killed, with 0 and with 2 workers: what was committed is there, and `--resume` ends the run.

Half of the kills come at a store call, the others at a random moment. The command runs in a process that is forked from one
that has imported torch, so that a try does not wait for imports.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from audit.records import Run
from audit.store.maintain.verify import verify
from audit.store.read.reader import Reader
from audit.store.write.writer import RunWriter
from bench.campaign.calls import watch_calls
from bench.campaign.children import Child, ask_child, command
from bench.campaign.stores import make_fresh, read_indices
from bench.campaign.trial import Trial

GOAL = 1_000
COUNTS = "kills of audit run"
_ROOT = Path(__file__).parent.parent.parent
_SAMPLES = 12
_CALLS = 110
#: One run in so many is taken up again to its end.
_RESUME_EVERY = 5


def run(trial: Trial) -> None:
    import_engine()
    place = make_fresh(trial.folder / "s")
    # How long a run takes when nobody kills it, by the number of workers; the machine may be busy.
    lasts = {workers: _time_of(place, workers) for workers in (0, 2)}
    while trial.more():
        make_fresh(place)
        workers = trial.chance.choice((0, 2))
        if trial.chance.random() < 0.5:
            at = trial.chance.randrange(_CALLS)
            code, _ = Child(lambda _, w=workers, at=at: _die_at(place, w, at)).end()
            kind = "at a store call"
        else:
            child, begun = Child(lambda _, w=workers: record(place, w)), time.monotonic()
            if child.wait(trial.chance.uniform(0.0, 1.1 * lasts[workers])):
                lasts[workers] = 0.7 * lasts[workers] + 0.3 * (time.monotonic() - begun)
            child.kill()
            code, _ = child.end()
            kind = "at a random moment"
        if code != -signal.SIGKILL:
            trial.counts["ended before the kill, not counted"] += 1
            if code:
                trial.fail(f"audit run ended with {code}")
            continue
        trial.tried += 1
        trial.counts[kind] += 1
        trial.counts[f"with {workers} workers"] += 1
        if (wrong := _judge(trial, place)) is not None:
            trial.fail(f"try {trial.tried}: {wrong}")


def import_engine() -> None:
    """Import what `audit run` does, found out in a child: no thread may exist in the process that forks the others."""
    import torch

    torch.set_num_threads(1)

    def list_imported() -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            code = record(Path(folder) / "s", 0)
        return sorted(sys.modules) if code == 0 else []

    for name in ask_child(list_imported):
        with contextlib.suppress(Exception):  # a module that only a file's loader knows, or that is optional
            importlib.import_module(name)


def record(place: Path, workers: int, *more: str) -> int:
    """Record a few digits, by the command; every batch is committed at once."""
    RunWriter._is_overdue = lambda _: True  # type: ignore[method-assign, assignment]
    return command(
        *("run", "--dataset", str(_ROOT / "fixtures" / "digits" / "test")),
        *("--pipeline", str(_ROOT / "pipelines" / "digits.py"), "--store", str(place), "--workers", str(workers)),
        *("--limit", str(_SAMPLES), "--batch-size", "4", "--capture", "digest", *more),
    )


def _time_of(place: Path, workers: int) -> float:
    begun = time.monotonic()
    code, _ = Child(lambda _: record(make_fresh(place), workers)).end()
    assert code == 0, f"audit run ended with {code}"
    return time.monotonic() - begun


def _die_at(place: Path, workers: int, at: int) -> int:
    left, process = at, os.getpid()

    def die(_: str, __: tuple[str, ...]) -> None:
        nonlocal left
        left -= 1
        if left < 0 and os.getpid() == process:
            os.killpg(process, signal.SIGKILL)

    with watch_calls(str(place), die):
        return record(place, workers)


def _judge(trial: Trial, place: Path) -> str | None:
    """Return what is wrong with the store after a kill; None if nothing is."""
    if not (place / "audit.json").exists():
        trial.counts["before there was a store"] += 1
        return None
    found, wrong = _read_committed(place)
    if found is None or wrong is not None:
        trial.counts["before there was a run"] += wrong is None
        return wrong
    trial.counts["samples committed before the kill"] += found.samples
    if trial.tried % _RESUME_EVERY or found.status == "complete":
        return None
    trial.counts["taken up again"] += 1
    code, _ = Child(lambda _: command("run", "--resume", found.run_id, "--store", str(place))).end()
    found, wrong = _read_committed(place)
    if code or found is None or found.samples != _SAMPLES:
        return f"taken up again, it ended with {code} and has {found.samples if found else 'no'} samples"
    return wrong


def _read_committed(place: Path) -> tuple[Run | None, str | None]:
    """Return the run as its parts hold it, and what does not fit together."""
    with Reader(str(place)) as reader:
        if damage := verify(reader):
            return None, f"verify: {damage[0]}"
        if not reader.runs():
            return None, None
        found = reader.runs()[0]
        indices: dict[str, list[Any]] = {
            table: read_indices(reader, found.run_id, table) for table in ("samples", "stage_outputs")
        }
    samples, staged = indices["samples"], set(indices["stage_outputs"])
    if len(samples) != len(set(samples)) or set(samples) != staged or len(samples) != found.samples:
        return found, f"{len(samples)} samples, {len(staged)} with stages, {found.samples} in the manifest"
    return found, None
