"""The loops whose recording is measured: as people write them, and the same with `run.loader` and `run.model`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@dataclass(frozen=True)
class Loop:
    """What the loop does with its pictures, and in how many worker processes they are made."""

    task: Literal["none", "resnet18", "training", "small"]
    workers: int


def plain_loop(loop: Loop, images: Path, checkpoint: Path | None) -> None:
    """The loop without recording."""
    _iterate(loop, _loader(loop, images), _model(loop, checkpoint))


def recorded_loop(loop: Loop, images: Path, checkpoint: Path | None, capture: str, work: Path) -> None:
    """The loop with recording, into a store below `work`."""
    import audit

    with audit.record(work / "lineage", capture=capture, strict=True) as run:
        loader, model = run.loader(_loader(loop, images)), _model(loop, checkpoint)
        _iterate(loop, loader, model if model is None else run.model(model))


def save_checkpoint(folder: Path) -> Path:
    """Write a ResNet-18 with random weights."""
    torch.manual_seed(0)
    torch.save(torchvision.models.resnet18(num_classes=10).state_dict(), folder / "resnet18.pt")
    return folder / "resnet18.pt"


def _iterate(loop: Loop, loader: Any, model: Any) -> None:
    if loop.task == "training":
        _train(loader, model)
        return
    with torch.inference_mode() if model is not None else contextlib.nullcontext():
        for pictures, _ in loader:
            if model is not None:
                model(pictures).softmax(1)


def _train(loader: Any, model: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    for pictures, labels in loader:
        optimizer.zero_grad()
        criterion(model(pictures), labels).backward()
        optimizer.step()


def _loader(loop: Loop, images: Path) -> Any:
    torch.manual_seed(0)
    dataset = datasets.ImageFolder(str(images), _transform(loop))
    batch_size = 64 if loop.task == "small" else 32
    return DataLoader(dataset, batch_size=batch_size, shuffle=loop.task == "training", num_workers=loop.workers)


def _transform(loop: Loop) -> Any:
    tail = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    if loop.task == "small":
        return transforms.Compose(tail)
    if loop.task == "training":
        random = [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.2, 0.2),
        ]
        return transforms.Compose([*random, *tail])
    return transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), *tail])


def _model(loop: Loop, checkpoint: Path | None) -> Any:
    torch.manual_seed(0)
    if loop.task == "none":
        return None
    if loop.task == "small":
        layers = [nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(784, 10)]
        return nn.Sequential(*layers).eval()
    model = torchvision.models.resnet18(num_classes=10)
    if checkpoint is not None:
        model.load_state_dict(torch.load(checkpoint, weights_only=True))
        model.eval()
    return model
