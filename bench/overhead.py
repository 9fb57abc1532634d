"""What recording costs: a plain loop against `audit run`, alternating, medians of ratios.

    python bench/overhead.py [--samples N] [--rounds N]

The plain loop is what people write: ImageFolder, DataLoader with two workers, the model under
inference_mode. Wall clock and CPU time of all processes are both measured; CPU time is the figure to trust on a
machine that does something else besides.
"""

from __future__ import annotations

import argparse
import os
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
import torchvision
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

sys.path.insert(0, str(Path(__file__).resolve().parent))
from pictures import make_pictures

TARGETS = {
    "resnet18": {"digest": 1.02, "preview": 1.05, "full": 1.15},
    "alone": {"digest": 1.10, "preview": 1.30, "full": 1.80},
}
PIPELINE = """
from torchvision import transforms
transform = transforms.Compose([
    transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
    transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
])
"""


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser()
    options.add_argument("--samples", type=int, default=512)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", choices=[*TARGETS], action="append")
    options.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "audit-bench")
    given = options.parse_args()
    images = make_pictures(given.dir / f"pictures-{given.samples}", given.samples)
    work = Path(tempfile.mkdtemp(dir=given.dir))
    pipeline = work / "bench_pipeline.py"
    pipeline.write_text(PIPELINE)
    checkpoint = work / "resnet18.pt"
    torch.manual_seed(0)
    torch.save(torchvision.models.resnet18(num_classes=10).state_dict(), checkpoint)
    try:
        for setting in given.only or TARGETS:
            model = checkpoint if setting == "resnet18" else None
            for capture, target in TARGETS[setting].items():
                _compare(setting, capture, target, given.rounds, images, pipeline, model, work)
    finally:
        shutil.rmtree(work)


def _compare(
    setting: str, capture: str, target: float, rounds: int, images: Path, pipeline: Path, model: Path | None, work: Path
) -> None:
    plain_loop = lambda: plain(images, model)  # noqa: E731
    recorded_loop = lambda: recorded(images, pipeline, model, capture, work)  # noqa: E731
    measure(plain_loop)
    pairs = [(measure(plain_loop), measure(recorded_loop)) for _ in range(rounds)]
    wall = statistics.median(r[0] / p[0] for p, r in pairs)
    cpu = statistics.median(r[1] / p[1] for p, r in pairs)
    plain_wall = statistics.median(p[0] for p, _ in pairs)
    verdict = "ok" if cpu <= target else "over"
    print(
        f"{setting:9s} {capture:8s} wall {wall:5.3f}x  cpu {cpu:5.3f}x  target {target:4.2f}x  {verdict:5s}"
        f" (plain {plain_wall:.2f} s)",
        flush=True,
    )


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


def plain(images: Path, model: Path | None) -> None:
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
    network = None
    if model is not None:
        network = torchvision.models.resnet18(num_classes=10)
        network.load_state_dict(torch.load(model, weights_only=True))
        network.eval()
    loader = DataLoader(dataset, batch_size=32, num_workers=2)
    with torch.inference_mode():
        for pictures, _ in loader:
            if network is not None:
                network(pictures).softmax(1)


def recorded(images: Path, pipeline: Path, model: Path | None, capture: str, work: Path) -> None:
    """The same through `audit run`."""
    import audit

    store = work / "lineage"
    audit.run(
        images,
        pipeline=pipeline,
        model=model,
        arch="resnet18" if model else None,
        store=store,
        capture=capture,
        batch_size=32,
        workers=2,
    )
    shutil.rmtree(store)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    main()
