"""A store of one run for each task, over small photographs: boxes, masks, several labels, a number, tokens, and layers with their values."""

from __future__ import annotations

import subprocess
from pathlib import Path

from warm_programs import warm_python

ROOT = Path(__file__).resolve().parents[2]

_RECORD = """
import sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

import audit
from annotated_pictures import CLASSES, PIECES, SIZE, mask_of, pieces

torch.set_num_threads(1)
torch.manual_seed(0)
place, pictures = sys.argv[1], pieces()


class Pieces(Dataset):
    def __init__(self, target, transforms):
        self.target, self.transforms = target, transforms
    def __len__(self):
        return len(pictures)
    def __getitem__(self, index):
        return self.target(index, self.transforms)


def boxes_of(index, transforms):
    objects = PIECES[index][2]
    boxes = tv_tensors.BoundingBoxes(torch.tensor([o[1:] for o in objects]).reshape(-1, 4), format="XYXY", canvas_size=(SIZE[1], SIZE[0]))
    return transforms(pictures[index], {"boxes": boxes, "labels": torch.tensor([o[0] for o in objects], dtype=torch.int64)})


class Detector(nn.Module):
    def forward(self, batch, targets):
        found = []
        for one in targets:
            boxes = one["boxes"].clone().as_subclass(torch.Tensor) + 2
            extra = torch.tensor([[5.0, 5.0, 25.0, 30.0]])
            found.append({"boxes": torch.cat([boxes[1:], extra]), "labels": torch.cat([one["labels"][1:], torch.tensor([2])]), "scores": torch.linspace(0.9, 0.4, len(boxes[1:]) + 1)})
        return found


steps = [v2.Resize((128, 192)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
with audit.record(place, name="detection", capture="full") as run:
    loader = run.loader(DataLoader(Pieces(boxes_of, v2.Compose(steps)), batch_size=2, collate_fn=lambda batch: list(zip(*batch))))
    model = run.model(Detector())
    for batch, targets in loader:
        model(list(batch), list(targets))


def masked(index, transforms):
    return transforms(pictures[index], tv_tensors.Mask(torch.from_numpy(mask_of(PIECES[index][2]))))


with audit.record(place, name="segmentation", capture="full") as run:
    loader = run.loader(DataLoader(Pieces(masked, v2.Compose(steps)), batch_size=2))
    model = run.model(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1)))
    for batch, masks in loader:
        nn.functional.cross_entropy(model(batch), masks.long())


def plain(value):
    return lambda index, transforms: (transforms(pictures[index]), value(index))


def net(outputs):
    body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.ReLU())
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, outputs))


def loop(name, value, outputs, criterion, output=None, **options):
    with audit.record(place, name=name, capture="preview") as run:
        loader = run.loader(DataLoader(Pieces(plain(value), v2.Compose(steps)), batch_size=2))
        model = run.model(net(outputs), output=output, **options)
        for batch, wanted in loader:
            criterion(model(batch), wanted).backward()


loop("layers", lambda n: n % 2, 2, nn.functional.cross_entropy, layers=["0.2", "0.3"], keep="full", backward=True)
loop("regression", lambda n: float(n), 1, lambda out, wanted: nn.functional.mse_loss(out[:, 0], wanted.float()), "regression")
loop("multilabel", lambda n: torch.tensor([n % 2, 1, n // 2], dtype=torch.float32), 3, nn.functional.binary_cross_entropy_with_logits, "multilabel")
"""


def record_tasks(folder: Path) -> Path:
    """Record them in one process. Returns the store."""
    place = folder / "lineage"
    command = [warm_python(), "-c", _RECORD, str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return place
