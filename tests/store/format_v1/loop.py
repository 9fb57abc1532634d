"""The loop whose recording is in this store: shuffled, two workers, random augmentation, two epochs, one layer."""

import random

import numpy as np
import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

import audit


def dataset(root: str = "digits") -> datasets.ImageFolder:
    """Build the dataset that the recording used."""
    stages = [transforms.Grayscale(), transforms.RandomRotation(10), transforms.ToTensor()]
    return datasets.ImageFolder(root, transforms.Compose(stages), is_valid_file=lambda path: "broken" not in path)


def main() -> None:
    """Record the loop."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    loader = DataLoader(dataset(), batch_size=8, shuffle=True, num_workers=2)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit.record("lineage", name="loop") as run:
        loader, model = run.loader(loader, split="train"), run.model(model, layers=["1"])
        for _ in run.epochs(2):
            for x, y in loader:
                loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main()
