"""What recording costs in training: a plain loop against the recorded one, alternating, medians of ratios.

    python bench/training.py [--samples N] [--rounds N] [--only training|layers|memory]

`training` is ResNet-18 with random augmentation, two workers, SGD. `layers` is the forward pass alone, with statistics of
one layer, beside a plain hook that saves the layer's output with numpy and, where they are installed, TorchLens and nnsight.
`memory` trains a small network for 120 epochs and says what the process took on the way.
CPU time of all processes is the figure to trust on a machine that does something else besides.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import psutil
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets, transforms

sys.path.insert(0, str(Path(__file__).resolve().parent))
from overhead import measure
from pictures import make_pictures

import audit

TRAINING_LIMITS = {"digest": 1.03, "preview": 1.08}
LAYER_TARGET = 1.05
LAYER = "layer4"


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser()
    options.add_argument("--samples", type=int, default=96)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", choices=["training", "layers", "memory"])
    options.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()) / "audit-bench")
    given = options.parse_args()
    torch.set_num_threads(1)
    images = make_pictures(given.dir / f"pictures-{given.samples}", given.samples)
    work = Path(tempfile.mkdtemp(dir=given.dir))
    try:
        if given.only in (None, "training"):
            for capture, target in TRAINING_LIMITS.items():
                compare(
                    f"training {capture}",
                    target,
                    given.rounds,
                    lambda: train(images, None, work),
                    lambda capture=capture: train(images, capture, work),  # type: ignore[misc]
                )
        if given.only in (None, "layers"):
            _layers(given.rounds, work)
        if given.only in (None, "memory"):
            _memory(work)
    finally:
        shutil.rmtree(work)


def compare(
    name: str, target: float | None, rounds: int, plain: Callable[[], Any], recorded: Callable[[], Any]
) -> None:
    """Alternate the two, and print the median of the ratios."""
    measure(plain)
    measure(recorded)
    pairs = [(measure(plain), measure(recorded)) for _ in range(rounds)]
    wall = statistics.median(r[0] / p[0] for p, r in pairs)
    cpu = statistics.median(r[1] / p[1] for p, r in pairs)
    verdict = "" if target is None else f"target {target:4.2f}x  {'ok' if min(wall, cpu) <= target else 'over'}"
    print(f"{name:24s} wall {wall:6.3f}x  cpu {cpu:6.3f}x  {verdict}", flush=True)


def train(images: Path, capture: str | None, work: Path) -> None:
    """One epoch; recorded when a level is given."""
    torch.manual_seed(0)
    augment = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.2, 0.2),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    loader: Any = DataLoader(datasets.ImageFolder(str(images), augment), batch_size=32, shuffle=True, num_workers=2)
    model = torchvision.models.resnet18(num_classes=10)
    if capture is None:
        _epoch(loader, model)
        return
    with audit.record(work / "lineage", capture=capture, strict=True) as run:
        _epoch(run.loader(loader), run.model(model))
    shutil.rmtree(work / "lineage")


def _epoch(loader: Any, model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def _memory(work: Path, epochs: int = 120, samples: int = 2000) -> None:
    """Over epochs nothing may add up: every sample is visited again and again."""
    process, resident = psutil.Process(), []
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(samples, 64), torch.arange(samples) % 10)
    with audit.record(work / "lineage", capture="digest", strict=True) as run:
        loader = run.loader(DataLoader(data, batch_size=50, shuffle=True))
        run.model(model, layers=[nn.ReLU], backward=True)
        for _ in run.epochs(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            resident.append(process.memory_info().rss / 2**20)
    shutil.rmtree(work / "lineage")
    print(
        f"memory over {epochs} epochs of {samples}: "
        + ", ".join(
            f"{resident[at - 1]:.0f} MB after {at}" for at in (epochs // 12, epochs // 3, 2 * epochs // 3, epochs)
        ),
        flush=True,
    )


# -- layers --------------------------------------------------------------------------------------


class Batches:
    """Samples that are in memory already: little but the forward pass is measured."""

    def __init__(self, count: int = 64, size: int = 16) -> None:
        generator = torch.Generator().manual_seed(0)
        samples = torch.randn(count, 3, 224, 224, generator=generator)
        self.loader: Any = DataLoader(TensorDataset(samples, torch.arange(count) % 10), batch_size=size)

    def run(self, model: Callable[[torch.Tensor], Any], loader: Any = None) -> None:
        with torch.inference_mode():
            for batch, _ in loader or self.loader:
                model(batch)


def _layers(rounds: int, work: Path) -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=10).eval()
    batches = Batches()
    print(f"statistics of {LAYER}, forward pass of ResNet-18:")
    for name, recorded, target in (
        ("audit, statistics", lambda: _train_with_audit(model, batches, work), LAYER_TARGET),
        ("hook with np.save", lambda: _train_with_saving(model, batches, work), None),
        ("TorchLens", _torchlens(model, batches), None),
        ("nnsight", _nnsight(model, batches), None),
    ):
        if recorded is None:
            print(f"{name:24s} not installed")
        else:
            compare(name, target, rounds, lambda: batches.run(model), recorded)


def _train_with_audit(model: nn.Module, batches: Batches, work: Path) -> None:
    """With the samples recorded, too: a layer's rows are those of samples."""
    with audit.record(work / "lineage", capture="digest", strict=True) as run:
        run.model(model, layers=[LAYER])
        batches.run(model, run.loader(batches.loader))
    shutil.rmtree(work / "lineage")


def _train_with_saving(model: nn.Module, batches: Batches, work: Path) -> None:
    number = 0

    def save(_: nn.Module, __: Any, output: torch.Tensor) -> None:
        nonlocal number
        np.save(work / f"{number}.npy", output.numpy())
        number += 1

    handle = model.get_submodule(LAYER).register_forward_hook(save)
    batches.run(model)
    handle.remove()


def _torchlens(model: nn.Module, batches: Batches) -> Callable[[], None] | None:
    try:
        import torchlens
        from torchlens.options import CaptureOptions
    except ImportError:
        return None
    wanted = CaptureOptions(layers_to_save=[LAYER])
    copied = torchvision.models.resnet18(num_classes=10).eval()
    copied.load_state_dict(model.state_dict())

    def run() -> None:
        with torch.no_grad():
            for batch, _ in batches.loader:
                torchlens.trace(copied, batch, capture=wanted)

    return run


def _nnsight(model: nn.Module, batches: Batches) -> Callable[[], None] | None:
    try:
        from nnsight import NNsight
    except ImportError:
        return None
    copied = torchvision.models.resnet18(num_classes=10).eval()
    copied.load_state_dict(model.state_dict())
    traced = NNsight(copied)

    def run() -> None:
        with torch.inference_mode():
            for batch, _ in batches.loader:
                with traced.trace(batch):
                    traced.layer4.output.save()

    return run


if __name__ == "__main__":
    main()
