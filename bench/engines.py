"""What each engine costs on one machine: `audit run --engine ray` with 1 and 2 actors beside the local engine, in turn.

    python bench/engines.py [--samples N] [--rounds N] [--workers N] [--no-model] [--warm]

Each run is a process of its own with all that it starts. CPU time is that of the whole family, looked at ten times a
second: what a process does in its last tenth of a second is not counted. *recording* is the run's own clock, without
imports and the start of the cluster. On one machine Ray can only cost: what it is for is more than one.

`--warm` starts one cluster before, and lets each kind of run be made once on it before any is measured. CPU time is then that of the
cluster as well. *new* is how many processes a run started.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
import torchvision

sys.path.insert(0, str(Path(__file__).resolve().parent))
from overhead import PIPELINE
from pictures import make_pictures

_LOOK = 0.1
#: Seconds after which a cluster has started its first workers.
_START_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one run took, in seconds."""

    clock: float
    recording: float
    cpu: float
    #: How many processes it started, in the cluster as well.
    new: int


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser()
    options.add_argument("--samples", type=int, default=3000)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--workers", type=int, default=2, help="of the local engine")
    options.add_argument("--no-model", action="store_true")
    options.add_argument("--warm", action="store_true", help="on a cluster that has made such a run before")
    options.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "audit-bench")
    given = options.parse_args()
    images = make_pictures(given.dir / f"pictures-{given.samples}", given.samples)
    work = Path(tempfile.mkdtemp(dir=given.dir))
    try:
        common = ["--dataset", str(images), "--capture", "digest", *_pipeline(work, model=not given.no_model)]
        engines = {"local": ["--workers", str(given.workers)]}
        engines |= {f"ray, {n} actors": ["--engine", "ray", "--actors", str(n)] for n in (1, 2)}
        if given.no_model:
            engines = {"local": engines["local"], "ray": ["--engine", "ray"]}
        with _cluster() if given.warm else contextlib.nullcontext() as cluster:
            if cluster is not None:
                for name, own in engines.items():
                    if name != "local":
                        own += ["--address", "auto"]
                        first = run([*common, *own], work / "lineage", cluster)
                        print(
                            f"{name}, first run on the cluster: {first.clock:.1f} s, {first.cpu:.1f} of CPU, {first.new} new"
                        )
            taken: dict[str, list[Measurement]] = {name: [] for name in engines}
            for _ in range(given.rounds):
                for name, own in engines.items():
                    taken[name].append(run([*common, *own], work / "lineage", cluster if name != "local" else None))
        _print(taken, given.samples)
    finally:
        shutil.rmtree(work)


def _pipeline(work: Path, *, model: bool) -> list[str]:
    pipeline, checkpoint = work / "bench_pipeline.py", work / "resnet18.pt"
    pipeline.write_text(PIPELINE)
    torch.manual_seed(0)
    torch.save(torchvision.models.resnet18(num_classes=10).state_dict(), checkpoint)
    chosen = ["--model", str(checkpoint), "--arch", "resnet18"] if model else []
    return ["--pipeline", str(pipeline), *chosen]


@contextlib.contextmanager
def _cluster() -> Iterator[int]:
    """A cluster of this machine's cores, without a dashboard; the process that its processes are children of."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    command = (
        "start --head --block --include-dashboard=false --disable-usage-stats --node-ip-address 127.0.0.1 --port 6399"
    )
    ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
    with subprocess.Popen([*ray, *command.split()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            os.environ["RAY_ADDRESS"] = "127.0.0.1:6399"
            time.sleep(_START_SECONDS)
            yield process.pid
        finally:
            process.terminate()


def run(options: list[str], store: Path, cluster: int | None = None) -> Measurement:
    """`audit run` with these options, into a store that is deleted afterwards."""
    begun = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "audit", "run", *options, "--store", str(store), "--json"],
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        cpu, new = _family_seconds(process, cluster)
        clock = time.perf_counter() - begun
        assert process.stdout is not None
        said = json.loads(process.stdout.read())
    assert said["status"] == "complete", said
    shutil.rmtree(store)
    return Measurement(clock, said["seconds"], cpu, new)


def _family_seconds(process: subprocess.Popen[bytes], cluster: int | None) -> tuple[float, int]:
    """CPU seconds of a process and all its descendants, and of a cluster meanwhile, once it has ended; and how many are new.

    Who was seen once is watched to its end, even when its parent is gone.
    """
    roots = [psutil.Process(number) for number in (process.pid, cluster) if number]
    known = {root.pid: root for root in roots}
    before: dict[int, float] = {}
    seconds: dict[int, float] = {}
    for root in roots[1:]:
        for one in (root, *root.children(recursive=True)):
            known[one.pid], before[one.pid] = one, _seconds(one)
    old = len(before)
    while process.poll() is None:
        for number, one in list(known.items()):
            with contextlib.suppress(psutil.Error):
                seconds[number] = _seconds(one)
        for root in roots:
            with contextlib.suppress(psutil.Error):
                known |= {child.pid: child for child in root.children(recursive=True) if child.pid not in known}
        time.sleep(_LOOK)
    return sum(seconds.values()) - sum(before.values()), len(known) - old


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _print(taken: dict[str, list[Measurement]], samples: int) -> None:
    base = taken["local"]
    print(f"{samples} pictures, medians of {len(base)}, load {os.getloadavg()[0]:.1f}")
    print(
        f"{'engine':14s} {'clock s':>8s} {'recording s':>12s} {'cpu s':>8s} {'new':>5s} {'cpu ms each':>12s} {'cpu ratio':>10s}"
    )
    for name, rounds in taken.items():
        clock, recording, cpu, new = (
            statistics.median(getattr(one, field) for one in rounds) for field in Measurement.__dataclass_fields__
        )
        ratio = statistics.median(one.cpu / local.cpu for one, local in zip(rounds, base, strict=True))
        print(
            f"{name:14s} {clock:8.1f} {recording:12.1f} {cpu:8.1f} {new:5.0f} {cpu / samples * 1000:12.2f} {ratio:9.2f}x"
        )


if __name__ == "__main__":
    main()
