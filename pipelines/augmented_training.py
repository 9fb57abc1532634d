"""Train with random augmentation, and record what each picture was turned into at every epoch.

    python pipelines/augmented_training.py
    audit sql "SELECT epoch, index, name, params FROM stage_outputs WHERE name = 'RandomAffine' AND index = 3"
    audit sql "FROM forgetting ORDER BY forgetting_events DESC LIMIT 10"

The three lines that record are marked. All else is an ordinary loop, and its weights come out the same, to the last
bit, with the lines or without them.

    audit run --dataset fixtures/digits/train --pipeline pipelines/augmented_training.py

goes through the augmentation alone: how do the pictures look that the network will see?
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import audit

PICTURES = Path(__file__).resolve().parent.parent / "fixtures" / "digits" / "train"

transform = v2.Compose(
    [
        v2.Grayscale(),
        v2.RandomAffine(degrees=12, translate=(0.1, 0.1), scale=(0.85, 1.15)),
        v2.RandomApply([v2.GaussianBlur(3)], p=0.3),
        v2.Resize(16, antialias=True),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(mean=[0.306], std=[0.318]),
    ]
)


def model(classes: int = 10) -> nn.Module:
    """A small convolutional network for one channel of 16×16."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(24 * 4 * 4, classes),
    )  # fmt: skip


def train(epochs: int, samples: int, store: str | None, seed: int = 0) -> nn.Module:
    """The loop. Without a store nothing is recorded, and everything else is the same."""
    torch.manual_seed(seed)
    folder = ImageFolder(str(PICTURES), transform=transform)
    chosen = torch.randperm(len(folder))[:samples].tolist()
    loader = DataLoader(Subset(folder, chosen), batch_size=32, shuffle=True)
    network = model()
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()

    run = audit.record(store, name="augmented-training") if store else None  # one
    if run:
        loader = run.loader(loader, split="train")  # two
        network = run.model(network)  # three
    for _ in run.epochs(epochs) if run else range(epochs):
        for pictures, labels in loader:
            optimizer.zero_grad()
            criterion(network(pictures), labels).backward()
            optimizer.step()
    if run:
        run.close()
    return network


def main() -> None:
    """Train a little, then ask which pictures were learned, forgotten, or never learned."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--store", default="lineage")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=256)
    given = parser.parse_args()
    train(given.epochs, given.samples, given.store)

    with audit.open(given.store) as store:
        run = store.run("augmented-training").run_id
        for epoch, accuracy, loss in store.sql(
            "SELECT epoch, avg(correct::INT), avg(loss) FROM predictions GROUP BY epoch ORDER BY epoch", run=run
        ).fetchall():
            print(f"epoch {epoch}: accuracy {accuracy:.3f}, loss {loss:.3f}")
        angle = store.sql(
            "SELECT source, params FROM stage_outputs JOIN samples USING (run_id, epoch, index, visit) "
            "WHERE name = 'RandomAffine' ORDER BY epoch, index LIMIT 1",
            run=run,
        ).fetchone()
        print(f"what RandomAffine drew for {angle[0]}: {angle[1]}" if angle else "nothing was drawn")


if __name__ == "__main__":
    main()
