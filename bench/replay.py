"""What replaying costs: a plain loop over the pictures against `store.replay` of a run that kept digests only.

    python -m bench.replay [--samples N] [--rounds N]

CPU time of all processes, alternating, medians of ratios; the target is 1.3 times the plain pipeline.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

import audit
from bench.pictures import make_pictures

TARGET = 1.3
WORKERS = 2
PIPELINE = """
from torchvision import transforms
transform = transforms.Compose([
    transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
    transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
])
"""


def main() -> int:
    """Measure and print; exit code 1 over the target."""
    options = argparse.ArgumentParser()
    options.add_argument("--samples", type=int, default=1024)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    base = Path(tempfile.gettempdir()) / "audit-bench"
    images = make_pictures(base / f"pictures-{given.samples}", given.samples)
    work = Path(tempfile.mkdtemp(dir=base))
    try:
        pipeline = work / "bench_replay_pipeline.py"
        pipeline.write_text(PIPELINE)
        audit.run(images, pipeline=pipeline, store=work / "lineage", capture="digest", workers=WORKERS)
        verdicts = [compare(images, work / "lineage", given.samples, given.rounds, workers) for workers in (WORKERS, 0)]
    finally:
        shutil.rmtree(work)
    return 0 if all(verdicts) else 1


def compare(images: Path, store: Path, samples: int, rounds: int, workers: int) -> bool:
    """Alternate the two; whether the target is met.

    With workers a plain loop also collates tensors and hands them over, which a replay need not: only without them is it the
    pipeline alone that is compared.
    """
    replay(store, samples, workers)
    pairs = [
        (measure(lambda: run_plain_loop(images, workers)), measure(lambda: replay(store, samples, workers)))
        for _ in range(rounds)
    ]
    cpu = statistics.median(again[1] / once[1] for once, again in pairs)
    wall = statistics.median(again[0] / once[0] for once, again in pairs)
    seconds = statistics.median(once[1] for once, _ in pairs)
    sys.stdout.write(
        f"replay, {workers} workers  cpu {cpu:.3f}x  wall {wall:.3f}x  target {TARGET}x  {'ok' if cpu <= TARGET else 'over'}"
        f"  (plain {seconds:.2f} s of CPU, {samples} pictures, {rounds} rounds)\n"
    )
    sys.stdout.flush()
    return cpu <= TARGET


def measure(loop: Callable[[], Any]) -> tuple[float, float]:
    """Wall clock and CPU seconds of a loop with all its processes."""
    before, begun = _cpu(), time.perf_counter()
    loop()
    return time.perf_counter() - begun, _cpu() - before


def _cpu() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run_plain_loop(images: Path, workers: int) -> None:
    """The loop as people write it."""
    transform = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    dataset = datasets.ImageFolder(str(images), transform)
    for _ in (
        DataLoader(dataset, batch_size=32, num_workers=workers)
        if workers
        else map(dataset.__getitem__, range(len(dataset)))
    ):
        pass


def replay(store: Path, samples: int, workers: int) -> None:
    """Every stage of every picture again."""
    with audit.open(store) as opened:
        result = opened.replay(workers=workers)
    if result.identical != samples:
        raise AssertionError(f"only {result.identical} of {samples} are identical")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
