"""What recording costs: each loop with and without recording, alternating, the least of several rounds, and the median of their ratios.

    python bench/overhead.py [--row NAME] [--capture LEVEL] [--processes N] [--rounds N] [--samples N]

A row is one loop: of the user's own (`run.loader`, `run.model`), or `audit run` beside the loop that people write.
`--list` prints the rows. CPU time of all processes and the clock are both measured; CPU time is the figure to trust
on a machine that does something else besides. `--calls` counts Python calls per sample instead (rows without workers).

Rounds are made in several new processes: a process uses the same physical memory for sample after sample, and how well that fits
into the processor's caches makes the same loop up to 5 % faster or slower for as long as the process lives.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from own_loop import Loop, plain_loop, recorded_loop, save_checkpoint
from pictures import make_pictures, make_small_pictures

PIPELINE = """
from torchvision import transforms
transform = transforms.Compose([
    transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
    transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
])
"""
NO_MODEL = {"digest": 1.10, "preview": 1.25, "full": 1.80}
EVALUATION = {"digest": 1.02, "preview": 1.04, "full": 1.12}
TRAINING_LIMITS = {"digest": 1.02, "preview": 1.05, "full": 1.15}
SMALL_LIMITS = {"digest": 1.6, "preview": 1.9, "full": 2.2}


@dataclass(frozen=True)
class Row:
    """One loop, how many samples it takes, and what recording it may cost."""

    loop: Loop
    samples: int
    targets: dict[str, float]
    is_command: bool = False


def _rows() -> Iterator[tuple[str, Row]]:
    for workers in (0, 2):
        yield f"small-{workers}", Row(Loop("small", workers), 2000, SMALL_LIMITS)
        yield f"jpeg-{workers}", Row(Loop("none", workers), 480, NO_MODEL)
        yield f"resnet18-{workers}", Row(Loop("resnet18", workers), 192, EVALUATION)
        yield f"training-{workers}", Row(Loop("training", workers), 96, TRAINING_LIMITS)
        yield f"run-jpeg-{workers}", Row(Loop("none", workers), 480, NO_MODEL, is_command=True)
        yield f"run-resnet18-{workers}", Row(Loop("resnet18", workers), 192, EVALUATION, is_command=True)


ROWS = dict(_rows())


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser()
    options.add_argument("--row", action="append", help="a row's name, or its beginning; all when left out")
    options.add_argument("--capture", choices=[*NO_MODEL], action="append")
    options.add_argument("--processes", type=int, default=4)
    options.add_argument("--rounds", type=int, default=3, help="in each process")
    options.add_argument("--samples", type=int)
    options.add_argument("--calls", action="store_true")
    options.add_argument("--list", action="store_true")
    options.add_argument(
        "--keep",
        action="store_true",
        help="leave the stores, which make files slow to make for minutes after they are removed",
    )
    options.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "audit-bench")
    options.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # one process of one row: its stores
    given = options.parse_args()
    if given.list:
        print("\n".join(ROWS))
        return
    torch.set_num_threads(1)
    given.dir.mkdir(parents=True, exist_ok=True)
    chosen = [name for name in ROWS if not given.row or any(name.startswith(row) for row in given.row)]
    if given.into is not None:
        print(json.dumps(_measure_here(ROWS[chosen[0]], given)))
        return
    # Nothing is removed before the end: for minutes ext4 does not use the inodes of removed files again, and making a file
    # looks at each of them, which takes longer than all else that a short recording does.
    stores = Path(tempfile.mkdtemp(dir=given.dir))
    try:
        for name in chosen:
            if given.calls:
                _print_calls(name, ROWS[name], given, stores)
            else:
                _measure_row(name, ROWS[name], given, stores)
    finally:
        if not given.keep:
            shutil.rmtree(stores)


#: The clock and the CPU time of a loop, without and with recording.
Pair = tuple[tuple[float, float], tuple[float, float]]


@dataclass(frozen=True)
class Loops:
    """The two loops of a row."""

    images: Path
    checkpoint: Path | None
    work: Path

    @classmethod
    def of(cls, row: Row, given: Any, work: Path) -> Loops:
        samples = given.samples or row.samples
        make = make_small_pictures if row.loop.task == "small" else make_pictures
        folder = "small" if row.loop.task == "small" else "pictures"
        images = make(given.dir / f"{folder}-{samples}", samples)
        return cls(images, save_checkpoint(work) if row.loop.task == "resnet18" else None, work)

    def make_plain(self, row: Row) -> Callable[[], None]:
        return lambda: plain_loop(row.loop, self.images, self.checkpoint)

    def make_recorded(self, row: Row, capture: str) -> Callable[[], None]:
        if row.is_command:
            return lambda: command(self.images, self.checkpoint, capture, row.loop.workers, self.work)
        return lambda: recorded_loop(row.loop, self.images, self.checkpoint, capture, self.work)


def _measure_row(name: str, row: Row, given: Any, stores: Path) -> None:
    pairs: dict[str, list[Pair]] = {capture: [] for capture in given.capture or row.targets}
    Loops.of(row, given, Path(tempfile.mkdtemp(dir=stores)))  # makes the pictures, which is not to be measured
    for _ in range(given.processes):
        program = [sys.executable, __file__, "--row", name, "--rounds", str(given.rounds), "--dir", str(given.dir)]
        program += ["--into", tempfile.mkdtemp(dir=stores)]
        program += [] if given.samples is None else ["--samples", str(given.samples)]
        program += [word for capture in pairs for word in ("--capture", capture)]
        made = subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout
        for capture, found in json.loads(made.splitlines()[-1]).items():
            pairs[capture] += found
    for capture, found in pairs.items():
        _print_row(name, capture, row.targets[capture], found, given.samples or row.samples)


def _measure_here(row: Row, given: Any) -> dict[str, list[Pair]]:
    """Measure a row in this process; the first round of each level is not counted."""
    loops = Loops.of(row, given, given.into)
    store = given.into / "lineage"
    plain = loops.make_plain(row)
    pairs: dict[str, list[Pair]] = {}
    for capture in given.capture or row.targets:
        recorded = loops.make_recorded(row, capture)
        found = pairs[capture] = []
        for number in range(1 + given.rounds):
            # In turns first and second: the machine may become slower from one minute to the next.
            taken = {loop: measure(loop) for loop in ((plain, recorded) if number % 2 else (recorded, plain))}
            found.append((taken[plain], taken[recorded]))
            store.rename(store.with_name(f"{store.name}-{capture}-{number}"))
        del found[0]
    return pairs


def _print_row(name: str, capture: str, target: float, pairs: list[Pair], samples: int) -> None:
    plain_wall, plain_cpu = (min(pair[0][n] for pair in pairs) for n in (0, 1))
    wall, cpu = (min(pair[1][n] for pair in pairs) for n in (0, 1))
    middle_wall, middle_cpu = (median(pair[1][n] / pair[0][n] for pair in pairs) for n in (0, 1))
    verdict = "ok" if max(wall / plain_wall, cpu / plain_cpu) <= target else "over"
    print(
        f"{name:16s} {capture:8s} cpu {cpu / plain_cpu:5.3f}  clock {wall / plain_wall:5.3f}  target {target:4.2f}  {verdict:4s}"
        f"  middle of pairs {middle_cpu:5.3f} {middle_wall:5.3f}"
        f"  (plain {plain_cpu / samples * 1000:.3f} ms a sample, recording {(cpu - plain_cpu) / samples * 1000:+.3f})",
        flush=True,
    )


def _print_calls(name: str, row: Row, given: Any, stores: Path) -> None:
    loops = Loops.of(row, given, Path(tempfile.mkdtemp(dir=stores)))
    for capture in given.capture or row.targets:
        counted = _count_calls(loops.make_recorded(row, capture), loops.make_plain(row))
        print(f"{name:16s} {capture:8s} {counted / (given.samples or row.samples):.0f} calls a sample", flush=True)


def measure(loop: Callable[[], Any]) -> tuple[float, float]:
    """Wall clock and CPU seconds of a loop with all its processes."""
    before, begun = _cpu(), time.perf_counter()
    loop()
    return time.perf_counter() - begun, _cpu() - before


def _cpu() -> float:
    used = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        used += usage.ru_utime + usage.ru_stime
    return used


def _count_calls(recorded: Callable[[], None], plain: Callable[[], None]) -> int:
    """How many calls, Python's and C's, this thread makes more with recording than without it."""
    counts = []
    for loop in (recorded, plain):
        loop()
        count = 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            loop()
        finally:
            sys.setprofile(None)
        counts.append(count)
    return counts[0] - counts[1]


def command(images: Path, checkpoint: Path | None, capture: str, workers: int, work: Path) -> None:
    """The same through `audit run`."""
    import audit

    pipeline = work / "bench_pipeline.py"
    if not pipeline.exists():
        pipeline.write_text(PIPELINE)
    audit.run(
        images,
        pipeline=pipeline,
        model=checkpoint,
        arch="resnet18" if checkpoint else None,
        store=work / "lineage",
        capture=capture,
        batch_size=32,
        workers=workers,
    )


if __name__ == "__main__":
    main()
