"""Runs to export: pictures with awkward names through a model, a training with layers, one with NaN, one that is empty."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import audit
from audit.store.write.writer import RunWriter

REPOSITORY = Path(__file__).resolve().parents[2]
NAMES = ("=1+1.png", "comma, quote\" and 'more'.png", "new\nline.png", "☃.png", "<b>.png", "-dash.png", "plain.png")


def make_store(folder: Path) -> Path:
    """A store with the runs `pictures`, `training`, `nan` and `empty`."""
    store = folder / "lineage"
    _pictures(folder, store)
    _record_training(store, "training")
    _record_training(store, "nan", spoil=True)
    run = RunWriter.create(str(store))
    run.run.name = "empty"
    run.finish("complete")
    return store


def _pictures(folder: Path, store: Path) -> None:
    for place, name in enumerate(NAMES):
        target = folder / "pictures" / str(place % 10)
        target.mkdir(parents=True)
        Image.linear_gradient("L").resize((12 + place, 12 + place)).save(target / name)
    for place in range(len(NAMES), 10):
        (folder / "pictures" / str(place)).mkdir()
        Image.linear_gradient("L").resize((12, 12)).save(folder / "pictures" / str(place) / "a.png")
    (folder / "pictures" / "3" / "broken.png").write_bytes(b"no picture")
    audit.run(
        folder / "pictures",
        model=REPOSITORY / "fixtures" / "digits.pt",
        pipeline=REPOSITORY / "pipelines" / "digits.py",
        store=store,
        name="pictures",
        tags={"team": "vision"},
        workers=0,
    )


def _record_training(store: Path, name: str, *, spoil: bool = False) -> None:
    torch.manual_seed(0)
    x = torch.randn(24, 4)
    if spoil:
        x[5] = float("nan")
    loader: DataLoader[tuple[torch.Tensor, ...]] = DataLoader(TensorDataset(x, torch.arange(24) % 3), batch_size=8)
    network: nn.Module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with audit.record(store, name=name) as run:
        loader, network = run.loader(loader, split="train"), run.model(network, layers=["1"], backward=True)
        for _ in run.epochs(2):
            for batch, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(batch), labels).backward()  # type: ignore[no-untyped-call]
                if not spoil:
                    optimizer.step()
