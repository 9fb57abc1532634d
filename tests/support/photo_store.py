"""A store of real photographs: crops with real class names, through a small trained network that makes real mistakes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from warm_programs import warm_python

ROOT = Path(__file__).resolve().parents[2]

_RECORD = """
import runpy, sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import audit

root, place = Path(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
common = {"dataset": str(root / "photos/test"), "model": "fixtures/photos.pt", "store": place, "workers": 0}
audit.run(**common, pipeline="fixtures/photos_pipeline.py", name="photos", capture="full", tags={"team": "vision"})
nearest = root / "nearest.py"
source = Path("fixtures/photos_pipeline.py").read_text()
nearest.write_text(source.replace("144, antialias=True", "144, interpolation=v2.InterpolationMode.NEAREST"))
audit.run(**common, pipeline=str(nearest), name="nearest", capture="preview")
audit.run(**common, pipeline="fixtures/photos_pipeline.py", name="digests", capture="digest", limit=24)

fixture = runpy.run_path("fixtures/photos_pipeline.py")
augment = v2.Compose([
    v2.RandomResizedCrop(64, scale=(0.4, 1.0), antialias=True), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True),
])
torch.manual_seed(0)
data = ImageFolder(root / "photos/test", augment)
loader = DataLoader(data, batch_size=24, shuffle=True)
model = fixture["model"]()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
with audit.record(place, name="training", capture="preview") as run:
    loader, recorded = run.loader(loader), run.model(model, layers=["avgpool"])
    for epoch in run.epochs(3):
        for pictures, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(recorded(pictures), labels).backward()
            optimizer.step()
"""


def record_photos(folder: Path) -> Path:
    """Cut the crops and record them: exact values, previews, digests alone, and a training of three epochs.

    One process, because loading torch takes longest. Returns the store.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    place = folder / "lineage"
    cut = [warm_python(), "fixtures/make_photos.py", str(folder / "photos")]
    subprocess.run(cut, cwd=ROOT, check=True, capture_output=True, timeout=600)
    command = [warm_python(), "-c", _RECORD, str(folder), str(place)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=600)
    return place
